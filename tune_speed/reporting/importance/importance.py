"""Which searched settings mattered: for meeting the target, for the steps to it, for a step's time.

Three questions rather than one, since a setting may matter for one and not for another: the time to
target is the steps to it times the time of a step, where the target is met at all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tune_speed.core.comparability import board_key
from tune_speed.core.records import RunResult, Status, Timing, TrialRecord
from tune_speed.core.text import counted
from tune_speed.reporting.importance.main_effects import columns_of, main_effects

Question = Literal["reaching", "steps", "step_time"]

# Parts of a recipe, and fields of its optimizer, that leave the time of a step alone, as their
# classes have it; not imported from there, as boards are read without torch.
LEARNING_ONLY = frozenset(
    {
        *("epochs", "init_loss_scale", "label_smoothing", "loss_scale_growth_steps"),
        *("drop_last", "lr_schedule", "order"),
    }
)
OPTIMIZERS_LEARNING_ONLY = frozenset(
    {
        *("beta", "beta1", "beta2", "bias_lr", "eps", "lr", "lr_per_examples", "momentum"),
        *("sgd_lr", "sgd_momentum", "weight_decay"),
    }
)

HOW_TO_READ = (
    "Each share is that part of the differences which goes where this setting alone is known,"
    " averaged over the others, as a forest of regression trees has it over the region that was"
    " tried (functional ANOVA, main effects), with its 90 % band over resampled trials. What the"
    " shares lack to 1 acts in combinations only. A setting that depends on another counts where it"
    " plays a part. A search tries promising settings more often: what it settled early looks less"
    " important than it is."
)


@dataclass(frozen=True, kw_only=True)
class ParamImportance:
    """How much one setting matters for a question."""

    name: str
    """Its dotted path."""
    value: float
    """Share of the forest's variance, in [0, 1]: the main effect (see `main_effects`)."""
    low: float
    """Lower end of the 90 % band over resampled trials."""
    high: float
    """Upper end of it."""


@dataclass(frozen=True, kw_only=True)
class Importance:
    """The answer to one question."""

    question: Question
    title: str
    about: str
    """What the shares are shares of, and how to read them."""
    n: int
    """Trials that the answer comes from."""
    why_none: str | None
    """Why there is no answer, in words; None where there is one."""
    explained: float | None
    """Share of the differences that the settings predict of trials which the forest has not seen
    (out-of-bag R²), above 0; None without an answer."""
    params: tuple[ParamImportance, ...]
    """The greatest first; empty without an answer."""


class _Words(NamedTuple):
    """What a question is about, in words."""

    title: str
    outcome: str
    counted: str
    """Which trials answer it."""
    least: int
    """So many of them are needed for a forest to be fitted."""
    alike: tuple[str, str]
    """What all of them did where the outcome is 0, and where it is another."""


QUESTIONS: Mapping[Question, _Words] = {
    "reaching": _Words(
        title="Meeting the target",
        outcome="whether a trial met the target (missed, stopped early, out of memory and diverged"
        " count as not met; failed ones are left out)",
        counted="finished trials",
        least=8,
        alike=("fell short of the target", "met the target"),
    ),
    "steps": _Words(
        title="Steps to the target",
        outcome="the logarithm of the optimizer steps to the target",
        counted="trials that met the target",
        least=5,
        alike=("took one step", "took equally many steps"),
    ),
    "step_time": _Words(
        title="Time of a step",
        outcome="the logarithm of the time of a step, where a setting can change it",
        counted="timed trials",
        least=8,
        alike=("took equally long over a step", "took equally long over a step"),
    ),
}


def importance(records: Sequence[TrialRecord], *, seed: int = 0) -> tuple[Importance, ...]:
    """Returns the answers to the three questions, from finished trials that may be compared.

    The same records and seed give the same answers.
    """
    assert len({board_key(record) for record in records}) <= 1, "records of several groups"
    finished = [r for r in records if r.runs and r.status is not Status.FAILED]
    # The mean of 0 and 1 in a leaf is what a classification tree calls its probability, and twice
    # their variance is Gini's impurity: regression trees are the same trees.
    met = [float(record.status is Status.REACHED) for record in finished]
    counted = [(record, _steps_to_target(record.runs[-1])) for record in finished]
    # A target that held before the first step has no logarithm.
    reached = [record for record, steps in counted if steps]
    outcome = [math.log(steps) for _, steps in counted if steps]
    timed = [r for r in finished if r.runs[-1].step_time_ms and r.runs[-1].steps]
    # A clock that neighbours slowed says as much of them as of the settings.
    chosen = [r for r in timed if r.runs[-1].timing is not Timing.SHARED] or timed
    step_ms = [record.runs[-1].step_time_ms for record in chosen]
    return (
        _answer("reaching", finished, met, seed=seed),
        _answer("steps", reached, outcome, seed=seed),
        _answer("step_time", chosen, [math.log(ms or 1.0) for ms in step_ms], seed=seed),
    )


def _steps_to_target(run: RunResult) -> float | None:
    """Returns the optimizer steps to the target; None if it was missed."""
    # Where the evaluation that met it is not on record, its share of the training clock is used.
    if run.status is not Status.REACHED or run.time_to_target_s is None:
        return None
    at = next((e.step for e in run.evaluations if e.train_s == run.time_to_target_s), None)
    if at is not None:
        return at
    whole_s, part_s = run.clocks.train_s - run.init_s, run.time_to_target_s - run.init_s
    return run.steps * min(1.0, part_s / whole_s) if whole_s > 0 else None


def can_change_step_time(name: str) -> bool:
    root, *path = name.split(".")
    if root == "optimizer" and path:
        return path[-1] not in OPTIMIZERS_LEARNING_ONLY
    return root not in LEARNING_ONLY


def _answer(
    question: Question, records: Sequence[TrialRecord], outcome: Sequence[float], *, seed: int
) -> Importance:
    rows = [
        {k: v for k, v in r.params.items() if question != "step_time" or can_change_step_time(k)}
        for r in records
    ]
    columns, words = columns_of(rows), QUESTIONS[question]
    why_none, effects = _too_little(words, outcome), None
    if why_none is None and not columns:
        why_none = "no setting that could matter was given two values"
    if why_none is None:
        effects = main_effects(columns, rows, np.array(outcome), seed=seed)
        # A forest that predicts no better than the mean has shares too, but of noise.
        if effects.explained <= 0:
            why_none = f"the settings do not predict it yet, from {counted(len(records), 'trial')}"
            effects = None
    by_name = effects.by_name.items() if effects else ()
    shares = sorted(by_name, key=lambda item: (-item[1].value, item[0]))
    return Importance(
        question=question,
        title=words.title,
        about=f"Of {words.outcome}; over the {words.counted}. {HOW_TO_READ}",
        n=len(records),
        why_none=why_none,
        explained=effects.explained if effects else None,
        params=tuple(ParamImportance(name=name, **e._asdict()) for name, e in shares),
    )


def _too_little(words: _Words, outcome: Sequence[float]) -> str | None:
    if len(outcome) < words.least:
        return f"it takes {words.least} {words.counted} or more, and there are {len(outcome)}"
    if len(set(outcome)) > 1:
        return None
    return f"all {len(outcome)} {words.counted} {words.alike[outcome[0] != 0]}"

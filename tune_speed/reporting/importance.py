"""Which searched settings mattered: for meeting the target, for the steps to it, for a step's time.

scikit-learn's random forest f is fitted to the trials. A setting's share is half of the R² that its
permutation takes from the forest's own predictions: mean((f(x) - f(x'))²) / 2 Var(f), which is its
total effect: y = 3 x_1 + x_2 of independent settings gives 0.9 and 0.1. Shares of what acts in
combinations add up to more than 1. What a search settled early looks less important than it is.

Source: Breiman, "Random forests", 2001; scikit-learn's `permutation_importance`.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.comparability import board_key
from tune_speed.core.records import RunResult, Status, Timing, TrialRecord
from tune_speed.core.text import counted

Floats = NDArray[np.float64]

# Positive numbers of which the greatest is so many times the least, and of which half lie in the
# lower quarter of the range, are logarithmic: records say what was tried, not from which scale.
LOG_SPAN = 10.0
# Numbers of so many different values at most, each tried twice or more on average, are levels: a
# choice of batch sizes, not a range.
MAX_LEVELS = 8


@dataclass(frozen=True, kw_only=True)
class Column:
    """One parameter of which two values or more were tried."""

    name: str
    categories: tuple[str, ...] = ()
    """Its values as text, where they are not all numbers."""
    low: float = 0.0
    high: float = 1.0
    """Least and greatest number, or their logarithms."""
    is_log: bool = False
    levels: Floats | None = None
    """Codes of all its values, where they are few; None for a range."""

    def code(self, value: Any) -> float:
        """Returns a category's place among the categories, or a number's in the range, 0 to 1."""
        if self.categories:
            return float(self.categories.index(str(value)))
        size = math.log(value) if self.is_log else float(value)
        return (size - self.low) / (self.high - self.low)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    names = dict.fromkeys(name for row in rows for name in row)
    found = (_column(name, [row[name] for row in rows if name in row]) for name in names)
    return tuple(column for column in found if column is not None)


def matrix_of(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Floats:
    """Returns the codes of what the N rows chose, (N, columns).

    Where a parameter plays no part it has the median of the others, which says nothing: else the
    effect of `optimizer` would be shared with all that depends on it.
    """
    codes = [[c.code(r[c.name]) if c.name in r else math.nan for c in columns] for r in rows]
    known = np.array(codes)
    return np.where(np.isnan(known), np.nanmedian(known, axis=0), known)


def _column(name: str, values: Sequence[Any]) -> Column | None:
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        categories = tuple(sorted(set(map(str, values))))
        levels = np.arange(len(categories), dtype=np.float64)
        return Column(name=name, categories=categories, levels=levels) if levels[1:].size else None
    different = sorted(set(values))
    if len(different) == 1:
        return None
    least, greatest = different[0], different[-1]
    in_lower_quarter = statistics.median(values) < least + (greatest - least) / 4
    is_log = 0 < least * LOG_SPAN <= greatest and in_lower_quarter
    low, high = (math.log(v) if is_log else float(v) for v in (least, greatest))
    column = Column(name=name, low=low, high=high, is_log=is_log)
    if len(different) > min(MAX_LEVELS, len(values) // 2):
        return column
    return replace(column, levels=np.array([column.code(value) for value in different]))


Question = Literal["reaching", "steps", "step_time"]

# Parts of a recipe, and fields of its optimizer, that leave the time of a step alone, as their
# classes have it; not imported from there, as boards are read without torch.
LEARNING_ONLY = frozenset(
    {
        *("epochs", "init_loss_scale", "label_smoothing", "loss_scale_growth_steps"),
        *("crop_pct", "drop_last", "eval_size", "lr_schedule", "order", "reinit_head"),
    }
)
OPTIMIZERS_LEARNING_ONLY = frozenset(
    {
        *("beta", "beta1", "beta2", "betas", "bias_lr", "eps", "lr", "lr_per_examples", "momentum"),
        *("sgd_lr", "sgd_momentum", "weight_decay"),
    }
)

NUM_TREES = 64
# Draws of the trials with replacement, and trees fitted to each, for the bands.
NUM_RESAMPLES, TREES_OF_RESAMPLE = 20, 12
# Trials that a tree is fitted to, and that are shuffled: of more it draws so many.
MOST_TRIALS = 1000
NUM_SHUFFLES, LEAF_TRIALS = 8, 2
BAND = (0.05, 0.95)


@dataclass(frozen=True)
class ParamImportance:
    """How much one setting matters: its share, in [0, 1], in a 90 % band over resampled trials."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Importance:
    """The answer to one question."""

    question: Question
    title: str
    n: int
    why_none: str | None
    explained: float | None
    """Share of the differences that the settings predict of trials which the forest has not seen
    (out-of-bag R²), above 0; None without an answer."""
    params: tuple[ParamImportance, ...]
    """The greatest first; empty without an answer."""


class _Words(NamedTuple):
    title: str
    counted: str
    least: int
    """So many of them are needed for a forest to be fitted."""
    alike: tuple[str, str]
    """What all of them did where the outcome is 0, and where it is another."""


_ALIKE = ("took equally long over a step", "took equally long over a step")
_MET = ("fell short of the target", "met the target")
_STEPS = ("took one step", "took equally many steps")
QUESTIONS: Mapping[Question, _Words] = {
    "reaching": _Words("Meeting the target", "finished trials", 8, _MET),
    "steps": _Words("Steps to the target", "trials that met the target", 5, _STEPS),
    "step_time": _Words("Time of a step", "timed trials", 8, _ALIKE),
}


def importance(records: Sequence[TrialRecord], *, seed: int = 0) -> tuple[Importance, ...]:
    """Returns the answers to the three questions, from finished trials that may be compared."""
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
    why_none, explained, params = _too_little(words, outcome), None, list[ParamImportance]()
    if why_none is None and not columns:
        why_none = "no setting that could matter was given two values"
    if why_none is None:
        explained, params = _shares(columns, matrix_of(columns, rows), np.array(outcome), seed=seed)
        # A forest that predicts no better than the mean has shares too, but of noise.
        if explained <= 0:
            why_none = f"the settings do not predict it yet, from {counted(len(records), 'trial')}"
            explained, params = None, []
    ordered = tuple(sorted(params, key=lambda each: (-each.value, each.name)))
    return Importance(question, words.title, len(records), why_none, explained, ordered)


def _shares(
    columns: Sequence[Column], chosen: Floats, outcome: Floats, *, seed: int
) -> tuple[float, list[ParamImportance]]:
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    rng, count = np.random.default_rng(seed), len(outcome)
    most = min(count, MOST_TRIALS)

    def fitted(trials: Any, num_trees: int, num_shuffles: int) -> tuple[Any, Floats]:
        options = {"min_samples_leaf": LEAF_TRIALS, "max_samples": most, "random_state": seed}
        forest = RandomForestRegressor(num_trees, oob_score=num_trees == NUM_TREES, **options)
        forest.fit(chosen[trials], outcome[trials])
        more = {"n_repeats": num_shuffles, "random_state": seed, "max_samples": most}
        lost = permutation_importance(forest, chosen, forest.predict(chosen), **more)
        return forest, np.clip(lost.importances_mean / 2, 0.0, 1.0)

    forest, values = fitted(slice(None), NUM_TREES, NUM_SHUFFLES)
    draws = [rng.integers(count, size=count) for _ in range(NUM_RESAMPLES)]
    resampled = [fitted(drawn, TREES_OF_RESAMPLE, 1)[1] for drawn in draws]
    lows, highs = np.quantile(resampled, BAND, axis=0)
    # The band of 20 resamples need not hold the value of all trials: it is widened to it.
    figures = np.stack([values, np.minimum(lows, values), np.maximum(highs, values)], 1).tolist()
    pairs = zip(columns, figures, strict=True)
    return float(forest.oob_score_), [ParamImportance(c.name, *each) for c, each in pairs]


def _too_little(words: _Words, outcome: Sequence[float]) -> str | None:
    if len(outcome) < words.least:
        return f"it takes {words.least} {words.counted} or more, and there are {len(outcome)}"
    if len(set(outcome)) > 1:
        return None
    return f"all {len(outcome)} {words.counted} {words.alike[outcome[0] != 0]}"

"""What was stopped and why: trials that did not reach the target, by reason."""

from collections.abc import Mapping
from dataclasses import dataclass

from tune_speed.core.records import Status
from tune_speed.reporting.figures.stop_kinds import stop_kind
from tune_speed.reporting.study.view import StudyPart, ViewedTrial


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Trials that ended in one way, for reasons that differ in their figures alone."""

    status: str
    kind: str
    """Why, without the figures of each."""
    example: str
    """Stop reason of the first of them."""
    trials: tuple[ViewedTrial, ...]
    train_s: float
    """Training clock of all of them together [s]."""
    share: float
    """Of the training clock of all trials, in [0, 1]."""


def endings_of(part: StudyPart) -> tuple[Ending, ...]:
    """Returns how trials missed, what took most training first."""
    groups: dict[tuple[Status, str], list[ViewedTrial]] = {}
    for trial in part.trials:
        if trial.record.status is not Status.REACHED:
            groups.setdefault((trial.record.status, stop_kind(trial.record)), []).append(trial)
    total_s = sum(map(_train_s, part.trials))
    found = [_ending(status, kind, trials, total_s) for (status, kind), trials in groups.items()]
    return tuple(sorted(found, key=lambda ending: -ending.train_s))


def counts_of(part: StudyPart) -> Mapping[str, int]:
    """Returns how many trials ended in each way that occurred."""
    every = {s.value: sum(t.record.status is s for t in part.trials) for s in Status}
    return {status: count for status, count in every.items() if count}


def _ending(status: Status, kind: str, trials: list[ViewedTrial], total_s: float) -> Ending:
    train_s = sum(map(_train_s, trials))
    return Ending(
        status=status.value,
        kind=kind,
        example=trials[0].record.stop_reason,
        trials=tuple(trials),
        train_s=train_s,
        share=train_s / total_s if total_s else 0.0,
    )


def _train_s(trial: ViewedTrial) -> float:
    return sum(run.clocks.train_s for run in trial.record.runs)

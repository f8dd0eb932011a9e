"""How the trials of a study ended, in a few kinds, without the figures of each."""

from dataclasses import dataclass

from tune_speed.core.comparability import target_of
from tune_speed.core.records import Status, TrialRecord, ended_as
from tune_speed.core.words import StopKind
from tune_speed.reporting.study.view import StudyPart, ViewedTrial

REACHED, IN_TIME = "met the target", "ended in time"
ENDED_BELOW = "ended below the target"
STOP_KINDS = {
    StopKind.PAST_LIMIT: "stopped: would end past the time limit",
    StopKind.UNLIKELY: "stopped: unlikely to meet the target",
    StopKind.SLOWER: "stopped: slower than the leader",
    StopKind.BELOW_RUNG: "stopped: other trials promised more",
    StopKind.BELOW_CUTOFF: "stopped: below ASHA's cutoff",
    StopKind.TIME_LIMIT: "stopped: the workload's time limit",
    StopKind.TOO_LONG: "stopped: the workload's time limit",
    StopKind.BY_HAND: "stopped by hand",
}
"""Words for the reasons that searches and runs give."""
OTHER_STOP = "stopped: another reason"
FIXED_KINDS = {
    Status.REACHED: REACHED,
    Status.MISSED: ENDED_BELOW,
    Status.OOM: "out of memory",
    Status.DIVERGED: "diverged: the loss was not finite",
}
FAILURES = {StopKind.PROCESS_DIED: "failed: its process died", StopKind.HUNG: "failed: hung"}
OTHER_FAILURE = "failed"


def stop_kind(record: TrialRecord) -> str:
    """Returns why the record's last run ended, without the figures of that run."""
    reason = record.stop_reason
    if record.status is Status.REACHED and target_of(record.workload).seeks_best:
        return IN_TIME
    if record.status in FIXED_KINDS:
        return FIXED_KINDS[record.status]
    if record.status is not Status.FAILED:
        return STOP_KINDS.get(reason.kind, OTHER_STOP)
    if reason.kind is StopKind.ERROR and "error" in reason.figures:
        return f"failed: {reason.figures['error']}"
    return FAILURES.get(reason.kind, OTHER_FAILURE)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Trials that ended in one way, for reasons that differ in their figures alone."""

    kind: str
    """How and why, without the figures of each."""
    trials: tuple[ViewedTrial, ...]
    train_s: float
    """Training clock of all of them together [s]."""
    share: float
    """Of the training clock of all trials, in [0, 1]."""

    @property
    def status(self) -> str:
        return self.trials[0].record.status.value

    @property
    def word(self) -> str:
        return ended_as(self.trials[0].record)

    @property
    def example(self) -> str:
        return str(self.trials[0].record.stop_reason)


def endings_of(part: StudyPart) -> list[Ending]:
    """Returns how the part's trials ended, what took most training first."""
    groups: dict[tuple[Status, str], list[ViewedTrial]] = {}
    for trial in part.trials:
        groups.setdefault((trial.record.status, stop_kind(trial.record)), []).append(trial)
    total_s = sum(train_s_of(trial.record) for trial in part.trials)
    found = []
    for (_, kind), trials in groups.items():
        train_s = sum(train_s_of(trial.record) for trial in trials)
        share = train_s / total_s if total_s else 0.0
        found.append(Ending(kind=kind, trials=tuple(trials), train_s=train_s, share=share))
    return sorted(found, key=lambda ending: -ending.train_s)


def train_s_of(record: TrialRecord) -> float:
    """Returns the training clock of all runs of a record [s]."""
    return sum(run.clocks.train_s for run in record.runs)

"""A study as people look at it: one frozen picture, in parts whose figures may be compared.

A part is one workload, one protocol and one device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tune_speed.core.comparability import ComparisonKey, board_key, fastest, target_of
from tune_speed.core.records import Status, TrialRecord, ended_as
from tune_speed.core.targets import Target
from tune_speed.core.text import moment_s
from tune_speed.core.words import StopKind
from tune_speed.reporting.leaderboard.ranking import Board, Row
from tune_speed.tracking.notes import NO_NOTE, Note
from tune_speed.tracking.reader.changes import SearchRun


@dataclass(frozen=True, kw_only=True)
class ViewedTrial:
    """A finished trial, and where to look at it."""

    record: TrialRecord
    run_id: str
    url: str | None
    """Its page in MLflow; None where no server shows it."""
    has_curve: bool
    """False: each run has its last evaluation only."""
    note: Note = NO_NOTE


@dataclass(frozen=True, kw_only=True)
class OpenTrial:
    """A trial without an outcome: it runs, or it was stopped."""

    trial_id: str
    run_id: str
    started_at: str
    """UTC, ISO 8601."""
    params: Mapping[str, str]
    """What the search chose, as text; empty where MLflow does not separate it from the recipe."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All that MLflow has of it, by MLflow's names, each as it was last."""
    search_run_id: str = ""

    @property
    def train_s(self) -> float | None:
        """The training clock at that moment [s]."""
        return self.metrics.get("train_s")

    @property
    def key(self) -> tuple[str, str]:
        """What stays the same when the trial runs again in another run."""
        return self.search_run_id, self.trial_id


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """The trials of a study that may be compared."""

    key: ComparisonKey
    trials: tuple[ViewedTrial, ...]
    """Estimates, in the order in which they finished."""
    certified: tuple[ViewedTrial, ...]
    priced: tuple[Row, ...] = ()
    """Of the first part of a workload: rows of known cost on all devices, the cheapest first."""

    @property
    def confirmed(self) -> tuple[ViewedTrial, ...]:
        return tuple(trial for trial in self.certified if trial.record.is_certified)

    @property
    def workload(self) -> Mapping[str, Any]:
        return (self.trials or self.certified)[0].record.workload

    @property
    def target(self) -> Target:
        return target_of(self.workload)

    @property
    def mode(self) -> str:
        return str(self.workload.get("mode", ""))

    @cached_property
    def records(self) -> tuple[ViewedTrial, ...]:
        """Estimates that were the fastest when they ended; empty: none met the target."""
        best: list[ViewedTrial] = []
        for trial in self.trials:
            if fastest(e.record for e in (*best[-1:], trial)) is trial.record:
                best.append(trial)
        return tuple(best)

    @property
    def leader(self) -> ViewedTrial | None:
        return self.records[-1] if self.records else None


@dataclass(frozen=True, kw_only=True)
class StudyView:
    """A study at one moment."""

    study: str
    uri: str
    """Tracking URI, without secrets."""
    url: str | None
    """The study's page in MLflow; None where no server shows it."""
    ui_command: str | None
    """Command that opens the store in MLflow's own pages; None where a server does."""
    read_at: str
    """UTC, ISO 8601."""
    searches: tuple[SearchRun, ...]
    """In the order in which they began."""
    trials: tuple[ViewedTrial, ...]
    """Estimates, in the order in which they finished."""
    certified: tuple[ViewedTrial, ...]
    running: tuple[OpenTrial, ...]
    interrupted: int
    """Trials that were stopped without an outcome, and were not run again yet."""
    boards: tuple[Board, ...] = field(default=())
    """Leaderboards of all trials, misses included at their ends."""

    @property
    def is_running(self) -> bool:
        return any(search.is_running for search in self.searches)

    @property
    def parts(self) -> tuple[StudyPart, ...]:
        """The trials, split into what may be compared; the part with the most trials first."""
        keys = dict.fromkeys(part_key(trial.record) for trial in (*self.trials, *self.certified))
        parts = [
            StudyPart(key=key, trials=_of(self.trials, key), certified=_of(self.certified, key))
            for key in keys
        ]
        parts.sort(key=lambda part: -len(part.trials))
        first = {part.key._replace(device=""): part.key for part in reversed(parts)}
        return tuple(
            replace(part, priced=self._priced(part.key)) if part.key in first.values() else part
            for part in parts
        )

    def _priced(self, key: ComparisonKey) -> tuple[Row, ...]:
        alike = [b for b in self.boards if b.key._replace(device=key.device, kind="") == key]
        rows = [r for b in alike for r in b.rows if b.kind == "estimate" and r.rank is not None]
        known = [(row.expected_cost, n, row) for n, row in enumerate(rows) if row.expected_cost]
        return tuple(row for _, _, row in sorted(known))


def part_key(record: TrialRecord) -> ComparisonKey:
    return board_key(record)._replace(kind="")


def search_clock_s(trials: Sequence[ViewedTrial]) -> dict[str, float]:
    """Returns by run id when each trial finished [s], on a clock that stops while none runs."""
    # A study that was stopped and resumed the next day did not search overnight. Trial ids are
    # not unique: a study that was begun again has each of them twice.
    ends = ((moment_s(t.record.started_at), moment_s(t.record.finished_at)) for t in trials)
    # A clock that was set back in between gives no negative time.
    spans = [(min(start, finish), finish) for start, finish in ends]
    changes = sorted([(start, 1) for start, _ in spans] + [(finish, -1) for _, finish in spans])
    elapsed_s, before, running = 0.0, 0.0, 0
    clock: dict[float, float] = {}
    for moment, change in changes:
        elapsed_s += moment - before if running else 0.0
        clock[moment], before, running = elapsed_s, moment, running + change
    return {trial.run_id: clock[finish] for trial, (_, finish) in zip(trials, spans, strict=True)}


def _of(trials: Sequence[ViewedTrial], key: ComparisonKey) -> tuple[ViewedTrial, ...]:
    return tuple(trial for trial in trials if part_key(trial.record) == key)


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

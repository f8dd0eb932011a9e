"""What runs: each trial from its proposal to its record, or to its interruption.

The ledger is written before observers get an event. After an error of the disk the search ends:
`failure` holds it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tune_speed.core.errors import StorageError
from tune_speed.core.records import Evaluation, RunResult, Status, TrialRecord
from tune_speed.core.words import StopKind, StopReason
from tune_speed.study.file import StudyFile
from tune_speed.training.trial import SpecBase, make_record, utc_now
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.trial_files import BestWeights, Checkpoints
from tune_speed.tuning.policy.base import Cost, Proposal

# Deaths of a trial in a session through no fault of its own, such as of a node, not counted.
MOST_BLAMELESS = 20
Fields = dict[str, Any]


class Observer(Protocol):
    """Observes a search. The driver's event loop calls it: return at once, never raise."""

    def trial_started(self, *, trial_id: str, params: Fields, recipe: Fields) -> None:
        """A trial was proposed and is about to start."""

    def trial_evaluated(self, *, trial_id: str, evaluation: Evaluation) -> None: ...

    def trial_finished(self, *, record: TrialRecord) -> None:
        """A trial ended with an outcome; it is in the ledger."""

    def trial_interrupted(self, *, trial_id: str, reason: str) -> None:
        """A trial was stopped without an outcome; resuming the study runs it again."""


@dataclass
class RunningTrial:
    """A trial that was proposed in this session and has not ended."""

    spec: SpecBase
    started_at: str = field(default_factory=utc_now)
    newest: TrialRecord | None = None
    num_reported: int = 0
    """Evaluations that observers have seen."""

    def without_run(
        self, status: Status, reason: StopReason, traceback: str | None = None
    ) -> TrialRecord:
        spec = self.spec
        run = RunResult(seed=spec.seed, status=status, stop_reason=reason, traceback=traceback)
        return make_record(spec, spec.recipe, run, started_at=self.started_at)

    def stopped(self) -> TrialRecord:
        """Returns the record of a trial that is stopped by hand, with what it has so far."""
        reason = StopReason.of(StopKind.BY_HAND)
        if self.newest is None:
            return self.without_run(Status.CAPPED, reason)
        return with_reason(self.newest, reason)


def with_reason(record: TrialRecord, stop_reason: StopReason) -> TrialRecord:
    run = record.runs[-1].model_copy(update={"stop_reason": stop_reason})
    return record.model_copy(update={"runs": (*record.runs[:-1], run)})


@dataclass
class Attempts:
    """Deaths of a trial since its last progress, in one session: a resumed one may be mended."""

    most: int
    num_deaths: int = 0
    num_blameless: int = 0
    furthest: int = 0
    """Optimizer steps of the checkpoint that got furthest."""

    def died(self, *, saved_step: int | None, is_blameless: bool) -> bool:
        """Counts a death; returns whether the trial starts again, from `saved_step` or scratch."""
        if saved_step is not None and saved_step > self.furthest:
            self.furthest = saved_step
            self.num_deaths = 0
        if is_blameless:
            self.num_blameless += 1
            if self.num_blameless <= MOST_BLAMELESS:
                return True
        self.num_deaths += 1
        return self.num_deaths < self.most


class Trials:
    """The trials that run, and what they leave: in the ledger, in files, and with observers."""

    def __init__(self, study: StudyFile, ledger: Ledger, observers: Sequence[Observer]) -> None:
        self._ledger, self._observers = ledger, observers
        self.running: dict[str, RunningTrial] = {}
        self.failure: StorageError | None = None
        self.best_weights: BestWeights | None = None
        if study.tracking.log_model == "best":
            self.best_weights = BestWeights(ledger.folder, ledger.records.values())
        self.checkpoints = Checkpoints(study.search, study=study.name, folder=ledger.folder)
        self._attempts = defaultdict[str, Attempts](lambda: Attempts(study.search.attempts))

    def write(self, write: Callable[[], None]) -> bool:
        """Returns whether the ledger was written; if not, the search ends after what runs."""
        try:
            write()
        except StorageError as error:
            self.failure = self.failure or error
            return False
        return True

    def begin(self, proposal: Proposal, spec: SpecBase, *, cost: Cost | None) -> bool:
        if not self.write(lambda: self._ledger.proposed(proposal, seed=spec.seed, cost=cost)):
            return False
        self.running[spec.trial_id] = RunningTrial(spec)
        recipe = spec.recipe.model_dump(mode="json")
        for observer in self._observers:
            observer.trial_started(trial_id=spec.trial_id, params=proposal.params, recipe=recipe)
        return True

    def evaluated(self, record: TrialRecord) -> tuple[Evaluation, ...]:
        trial = self.running[record.trial_id]
        trial.newest = record
        return self._pass_on_evaluations(trial, record)

    def finished(self, record: TrialRecord) -> None:
        trial = self.running.pop(record.trial_id)
        self.write(lambda: self._ledger.finished(record))
        if self.best_weights is not None:
            self.best_weights.finished(record)
        self._pass_on_evaluations(trial, record)
        for observer in self._observers:
            observer.trial_finished(record=record)

    def stopped_before(self, spec: SpecBase) -> None:
        trial = self.running[spec.trial_id] = RunningTrial(spec)
        self.finished(trial.stopped())

    def interrupted(self, trial_id: str, *, reason: StopReason) -> None:
        del self.running[trial_id]
        self.write(lambda: self._ledger.interrupted(trial_id, reason=reason))
        for observer in self._observers:
            observer.trial_interrupted(trial_id=trial_id, reason=str(reason))

    def may_run_again(self, trial_id: str, *, is_blameless: bool) -> bool:
        saved_step = self.checkpoints.saved_step(trial_id)
        return self._attempts[trial_id].died(saved_step=saved_step, is_blameless=is_blameless)

    def _pass_on_evaluations(
        self, trial: RunningTrial, record: TrialRecord
    ) -> tuple[Evaluation, ...]:
        evaluations = record.runs[-1].evaluations
        new = evaluations[trial.num_reported :]
        trial.num_reported = len(evaluations)
        for observer in self._observers:
            for evaluation in new:
                observer.trial_evaluated(trial_id=record.trial_id, evaluation=evaluation)
        return new

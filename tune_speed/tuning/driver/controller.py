"""One search, seen from the driver: policy, ledger and observers, in the order that loses nothing.

The controller knows neither Ray nor time-sharing: whatever runs the trials takes the next one from
`propose`, and reports to `evaluated`, `finished`, `interrupted` and `died`. The ledger is written
before observers get an event. After an error of the disk the search ends: `failure` holds it, and
no further trial is proposed.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol

from tune_speed.core.errors import StorageError
from tune_speed.core.records import (
    CLOCKED,
    Evaluation,
    Recommended,
    RunResult,
    Status,
    StepTime,
    TrialRecord,
)
from tune_speed.core.words import StopKind, StopReason
from tune_speed.custom.spec import OwnSpec, spec_type
from tune_speed.study.file import StudyFile
from tune_speed.study.space import read_point
from tune_speed.training.trial import Allotment, SpecBase, make_record, utc_now
from tune_speed.tuning.driver.attempts import Attempts
from tune_speed.tuning.driver.checkpoints import Checkpoints
from tune_speed.tuning.driver.cost_model import CostModel
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.prior_trials import outcome_of
from tune_speed.tuning.driver.requests import Answer, Set, Stop, Try, accepted
from tune_speed.tuning.driver.steering import is_paused, with_settings
from tune_speed.tuning.driver.trial_files import BestWeights, read_trial_file
from tune_speed.tuning.driver.windows import WindowHistory
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.base import Cost, Outcome, Policy, Proposal, params_key

MOST_RIVALS = 4
"""Configurations that are timed side by side when a search ends."""


class Observer(Protocol):
    """Observes a search. The driver's event loop calls it: return at once, never raise."""

    def trial_started(
        self, *, trial_id: str, params: dict[str, Any], recipe: dict[str, Any]
    ) -> None:
        """A trial was proposed and is about to start."""

    def trial_evaluated(self, *, trial_id: str, evaluation: Evaluation) -> None:
        """A running trial was evaluated."""

    def trial_finished(self, *, record: TrialRecord) -> None:
        """A trial ended with an outcome; it is in the ledger."""

    def trial_interrupted(self, *, trial_id: str, reason: str) -> None:
        """A trial was stopped without an outcome; resuming the study runs it again."""


class SearchController:
    """Drives one search from first to last trial."""

    def __init__(
        self,
        *,
        study: StudyFile,
        workload_hash: str,
        ledger: Ledger,
        allotment: Allotment,
        observers: Sequence[Observer],
        step_times: Sequence[StepTime] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes over what the ledger, which is open, holds.

        `workload_hash` identifies the workload with its data, each trial gets `allotment`, and
        observers every event. `step_times` are windows that earlier studies measured, `now` is a
        monotonic clock [s].
        """
        self.study, self.workload_hash, self.ledger = study, workload_hash, ledger
        self.allotment, self.observers, self.now = allotment, observers, now
        self.is_paused = is_paused(ledger.answers.values())
        self.stood_s = 0.0
        """Seconds for which it was paused and no trial ran: they are not of the time budget."""
        self._times = WindowHistory(study.name, [*step_times, *ledger.windows])
        self._best_weights = self._make_best_weights()
        num_train = self._num_train = study.workload.num_train()
        self._cost_model = None
        if num_train is not None:
            self._cost_model = CostModel(study.space, num_train=num_train)
        self._past_costs: dict[tuple[tuple[str, Any], ...], Cost | None] = {}
        self.policy = self._make_policy()
        self.failure: StorageError | None = None
        self._started = now()
        self._specs: dict[str, SpecBase] = {}
        self._newest: dict[str, TrialRecord] = {}
        """The record so far of each running trial that has reported."""
        self._started_at: dict[str, str] = {}
        self._attempts = Attempts(study.search.attempts)
        self._checkpoints = Checkpoints(study.search, study=study.name, folder=ledger.folder)
        self._num_reported: dict[str, int] = {}
        self._found_nothing = False  # Until a trial ends: what it shows may change that.
        self._why_settled: StopReason | None = None
        self._take_over()

    def _make_best_weights(self) -> BestWeights | None:
        if self.study.tracking.log_model != "best":
            return None
        return BestWeights(self.ledger.folder, self.ledger.records.values())

    def _make_policy(self) -> Policy:
        # SciPy and Optuna take 0.8 s to import.
        from tune_speed.tuning.policies import make_policy
        from tune_speed.tuning.policy.settings import Parts

        workload, search, space = self.study.workload, self.study.search, self.study.space
        aim = workload.target
        return make_policy(
            search.policy,
            space=space,
            target=base.SearchTarget(
                aim.goal,
                workload.mode,
                workload.max_train_s,
                best=aim.seeks_best,
            ),
            cost_of=self.cost_of,
            seed=search.seed,
            sampler=search.sampler,
            points=[read_point(space, point) for point in search.points_to_evaluate],
            prior_trials=list(chain.from_iterable(self.ledger.prior_trials.values())),
            storage=search.storage,
            study_name=f"{self.workload_hash[:12]}-{space.hash[:12]}",
            parts=Parts(hold_back=search.hold_back, until=search.until),
        )

    def _take_over(self) -> None:
        proposals, records = self.ledger.proposals, self.ledger.records
        for record in records.values():
            self._learn_times(record)
        self._end_stopped()
        # A policy learns from a trial with the cost that was predicted when it was proposed; the
        # present prediction would give another state than that of a search without a break.
        costs = self.ledger.costs
        self._past_costs = {params_key(p.params): costs[i] for i, p in proposals.items()}
        is_idle = [p.trial_id not in self._specs for p in self.ledger.unfinished]
        by_use = sorted(zip(is_idle, self.ledger.unfinished, strict=True), key=lambda each: each[0])
        self.policy.restore(
            finished=[(proposals[r.trial_id], self._outcome(r)) for r in records.values()],
            unfinished=[proposal for _, proposal in by_use],
            num_taken=max((base.trial_number(each) + 1 for each in proposals), default=0),
        )
        self._past_costs = {}
        for _ in self._specs:  # Those that run are the first that are proposed again.
            self.policy.ask()
        for request, answer in self.wanted():
            self.policy.try_next(answer.point, reason=request.reason)
        self.clear_checkpoints()

    def clear_checkpoints(self) -> None:
        """Removes checkpoints of trials that have their record."""
        self._checkpoints.clear(self.ledger.records)

    def _learn_times(self, record: TrialRecord, *, now_s: float = -math.inf) -> None:
        """Learns costs and step times from a trial, which ended now or in an earlier session."""
        if self._cost_model is not None:
            self._cost_model.finished(record)
        self._times.add(record.runs[-1], now_s=now_s)

    def cost_of(self, params: Mapping[str, Any]) -> Cost | None:
        """Returns the predicted cost of a configuration; None where nothing similar ran yet."""
        if self._past_costs and (key := params_key(params)) in self._past_costs:
            return self._past_costs[key]
        return None if self._cost_model is None else self._cost_model(params)

    def wanted(self) -> list[tuple[Try, Answer]]:
        """Returns what people want tried and has not been proposed yet."""
        known = {p.reason.request_id for p in self.ledger.proposals.values()}
        every = accepted(self.ledger.answers.values(), Try)
        return [(request, answer) for request, answer in every if request.id not in known]

    def _end_stopped(self) -> None:
        """Ends trials that were stopped by hand, if the driver was killed before it could."""
        for request, _ in accepted(self.ledger.answers.values(), Stop):
            trial_id = request.trial
            if trial_id not in self.ledger.records and trial_id not in self._specs:
                spec, at = self._spec(self.ledger.proposals[trial_id]), utc_now()
                record = make_record(spec, spec.recipe, _unseen(spec), started_at=at)
                self._write(partial(self.ledger.finished, record))
                for observer in self.observers:
                    observer.trial_finished(record=record)

    def steered(self, answer: Answer) -> bool:
        """Writes what comes of a person's request, and does it; returns whether it was written."""
        request = answer.request
        if not self._write(lambda: self.ledger.steered(answer)):
            return False
        if answer.refused:
            return True
        self._found_nothing = False
        self.is_paused = is_paused(self.ledger.answers.values())
        if isinstance(request, Try):
            self.policy.try_next(answer.point, reason=request.reason)
        elif isinstance(request, Stop):
            self._stop(request.trial)
        elif isinstance(request, Set):
            self._set(with_settings(self.study, request.changes))
        return True

    def _set(self, study: StudyFile) -> None:
        self.study = study
        cotenants = {"max_cotenants": study.search.at_once - 1}
        self.allotment = self.allotment.model_copy(update=cotenants)

    def _stop(self, trial_id: str) -> None:
        spec, newest = self._specs[trial_id], self._newest.get(trial_id)
        if newest is None:
            started_at = self._started_at[trial_id]
            self.finished(make_record(spec, spec.recipe, _unseen(spec), started_at=started_at))
            return
        run = newest.runs[-1].model_copy(update={"stop_reason": StopReason.of(StopKind.BY_HAND)})
        self.finished(newest.model_copy(update={"runs": (*newest.runs[:-1], run)}))

    @property
    def num_begun(self) -> int:
        """Trials that have finished or run."""
        return self.num_finished + len(self._specs)

    @property
    def num_finished(self) -> int:
        """Trials with a record, those of earlier sessions included."""
        return len(self.ledger.records)

    @property
    def running(self) -> tuple[str, ...]:
        """Trials that were proposed in this session and have not ended."""
        return tuple(self._specs)

    @property
    def elapsed_s(self) -> float:
        """Seconds since this session began."""
        return self.now() - self._started

    def time_left_s(self) -> float | None:
        """Returns the seconds of the time budget that are left, or None without a budget."""
        budget_s = self.study.search.time_budget_s
        return None if budget_s is None else budget_s - self.elapsed_s + self.stood_s

    def spent(self) -> float:
        """Returns the share of the search's budget that is used up, of its trials or its time."""
        by_trials = self.num_begun / self.study.search.trials
        budget_s, left_s = self.study.search.time_budget_s, self.time_left_s()
        by_time = 0.0 if budget_s is None or left_s is None else 1 - left_s / budget_s
        return max(by_trials, by_time)

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        """Configurations that met the target, what is recommended first."""
        name, target = self.study.name, self.study.workload.target
        named = (each.model_copy(update={"study": name}) for each in self.policy.favourites)
        return tuple(each.of_scores(target.metric_of) for each in named)

    @property
    def why_exhausted(self) -> StopReason | None:
        """Why the search ended before its last trial, where nothing is left to try."""
        if not self._is_exhausted or self.num_finished >= self.study.search.trials:
            return None
        if self._why_settled is not None:
            return self._why_settled
        has_leader = self.policy.leader is not None
        return StopReason.of(StopKind.NOTHING_BETTER if has_leader else StopKind.NOTHING_LEFT)

    def end(self) -> StopReason | None:
        """Writes why the search ended before its budget was used up, and returns it."""
        why = self.why_exhausted
        if why is not None:
            self._write(lambda: self.ledger.ended(why))
        return why

    def is_over(self) -> bool:
        """Whether no further trial may start."""
        time_left_s = self.time_left_s()
        out_of_time = time_left_s is not None and time_left_s <= 0
        all_started = self.num_begun >= self.study.search.trials
        return out_of_time or all_started or self._is_exhausted or self.failure is not None

    @property
    def _is_exhausted(self) -> bool:
        """Whether the policy found nothing to try, and no running trial could change that."""
        return self._found_nothing and not self._specs

    def propose(self) -> SpecBase | None:
        """Returns the next trial, recorded as proposed; None where there is none to come."""
        if self.is_over() or self._found_nothing or self.is_paused:
            return None
        self.policy.spent = self.spent()
        proposal = self.policy.ask()
        if proposal is None:
            self._found_nothing = True
            # Asked now: once trials are re-clocked, it is another policy's word.
            self._why_settled = self.policy.why_settled
            return None
        spec = self._spec(proposal)
        cost = self.cost_of(proposal.params)
        if not self._write(lambda: self.ledger.proposed(proposal, seed=spec.seed, cost=cost)):
            self.policy.withdraw(proposal.trial_id)
            return None
        self._specs[proposal.trial_id] = spec
        self._num_reported[proposal.trial_id] = 0
        self._started_at[proposal.trial_id] = utc_now()
        recipe = spec.recipe.model_dump(mode="json")
        trial_id, params = proposal.trial_id, proposal.params
        for observer in self.observers:
            observer.trial_started(trial_id=trial_id, params=params, recipe=recipe)
        return spec

    def evaluated(self, record: TrialRecord) -> StopReason | None:
        """Takes a running trial's record so far; returns why to stop it, or None.

        The policy gets each evaluation since the last call, in order, up to the first for which it
        stops the trial. Such a trial has ended: its record so far is its record.
        """
        # Trials that begin before it ends need not measure them.
        self._times.add(record.runs[-1], now_s=self.elapsed_s)
        self._newest[record.trial_id] = record
        for evaluation in self._pass_on_evaluations(record):
            # The untrained model says nothing of the recipe.
            if evaluation.step == 0:
                continue
            reason = self.policy.report(
                record.trial_id,
                train_s=evaluation.train_s,
                step=evaluation.step,
                metric=self.study.workload.score_of(evaluation),
            )
            if reason is not None:
                run = record.runs[-1].model_copy(update={"stop_reason": reason})
                self.finished(record.model_copy(update={"runs": (*record.runs[:-1], run)}))
                return reason
        return None

    def finished(self, record: TrialRecord) -> None:
        """Takes the record of a trial that ended."""
        self._ended(record.trial_id)
        self._learn_times(record, now_s=self.elapsed_s)
        self.policy.finish(record.trial_id, self._outcome(record))
        self._write(lambda: self.ledger.finished(record))
        if self._best_weights is not None:
            self._best_weights.finished(record)
        self._pass_on_evaluations(record)
        for observer in self.observers:
            observer.trial_finished(record=record)

    def rivals(self) -> tuple[TrialRecord, ...]:
        """Returns the trials that could be first by how sure their step times are, best first.

        They are favourites whose clocks overlap that of the first, one a kind of step; none where
        it has no rival.
        """
        found: dict[tuple[str, ...], tuple[TrialRecord, float]] = {}
        for favourite in self.favourites:
            record = self.ledger.records.get(favourite.trial_id)
            run = record.runs[-1] if record else None
            if record is None or run is None or run.timing not in CLOCKED or record.is_own_loop:
                continue
            sure = [each.high_s / each.low_s for each in run.step_times if each.low_s > 0]
            overlap = math.sqrt(max(sure, default=1.0))
            first = next(iter(found.values()))[1] if found else favourite.expected_s
            if favourite.expected_s <= first * overlap**2:
                keys = tuple(each.key for each in run.step_times)
                found.setdefault(keys, (record, favourite.expected_s))
        rivals = tuple(record for record, _ in found.values())[:MOST_RIVALS]
        return rivals if len(rivals) > 1 else ()

    def reclock(self, windows: Sequence[StepTime] = ()) -> tuple[str, ...]:
        """Makes the clocks of all finished trials of the best step times; returns which changed.

        `windows` are further ones, that no trial measured. No trial runs meanwhile.
        """
        assert not self._specs, self._specs
        step_times, told, changed = self._times.settled(windows), dict[str, StepTime](), list[str]()
        for record in self.ledger.records.values():
            used = record.runs[-1].step_times
            new = {each.key: step_times.get(each.key, each) for each in used}
            told |= new
            if tuple(new.values()) != used:
                changed.append(record.trial_id)
        if not changed or not self._write(lambda: self.ledger.timed(windows, told)):
            return ()
        # What it recommends follows from the times.
        self.policy = self._make_policy()
        self._take_over()
        return tuple(changed)

    def interrupted(self, trial_id: str, *, reason: StopReason, is_again: bool = False) -> None:
        """Records that a trial was stopped without an outcome; `is_again`: it is run again now."""
        if is_again:
            self.policy.retry(self.ledger.proposals[trial_id])
        else:
            self.policy.withdraw(trial_id)
        self._interrupted(trial_id, reason)

    def died(
        self, trial_id: str, *, reason: StopReason, details: str, is_blameless: bool = False
    ) -> None:
        """Handles a trial whose process is gone: its record is looked up, or it runs again.

        After `search.attempts` it is recorded as failed, with `reason` and, as its traceback,
        `details`. A blameless death, such as of a node, is not counted.
        """
        record = read_trial_file(self.ledger.folder, trial_id)
        if record is not None:
            self.finished(record)
            return
        spec, saved_step = self._specs[trial_id], self._checkpoints.saved_step(trial_id)
        if not self._attempts.died(trial_id, saved_step=saved_step, is_blameless=is_blameless):
            failed = {"status": Status.FAILED, "stop_reason": reason, "traceback": details}
            run, started_at = RunResult(seed=spec.seed, **failed), self._started_at[trial_id]
            self.finished(make_record(spec, spec.recipe, run, started_at=started_at))
            return
        self.policy.retry(self.ledger.proposals[trial_id])
        self._interrupted(trial_id, reason.with_figures(runs_again=1))

    def _interrupted(self, trial_id: str, reason: StopReason) -> None:
        self._ended(trial_id)
        self._write(lambda: self.ledger.interrupted(trial_id, reason=reason))
        for observer in self.observers:
            observer.trial_interrupted(trial_id=trial_id, reason=str(reason))

    def _ended(self, trial_id: str) -> None:
        del self._specs[trial_id]
        self._newest.pop(trial_id, None)
        self._found_nothing = False

    def _spec(self, proposal: Proposal) -> SpecBase:
        kind, best_weights = spec_type(self.study.workload), self._best_weights
        known = self._times.pooled()
        if kind is OwnSpec:  # No other's steps are known to be alike: only how fast places are.
            known = {each.place: each for each in known.values()}
        return kind(
            study=self.study.name,
            trial_id=proposal.trial_id,
            params=proposal.params,
            proposal_reason=proposal.reason,
            recipe=kind.recipe_of(self.study.space.build(proposal.params)),
            workload=self.study.workload,
            workload_hash=self.workload_hash,
            space_hash=self.study.space.hash,
            seed=trial_seed(self.study.search.seed, proposal.trial_id),
            allotment=self.allotment,
            step_times=tuple(known.values()),
            due_step_times=self._times.due(now_s=self.elapsed_s),
            keep=None if best_weights is None else best_weights.plan(proposal.trial_id),
            checkpoint=self._checkpoints.plan(proposal.trial_id),
        )

    def _outcome(self, record: TrialRecord) -> Outcome:
        return outcome_of(record, self.study.workload, num_train=self._num_train)

    def _pass_on_evaluations(self, record: TrialRecord) -> tuple[Evaluation, ...]:
        trial_id, evaluations = record.trial_id, record.runs[-1].evaluations
        new = evaluations[self._num_reported.get(trial_id, 0) :]
        self._num_reported[trial_id] = len(evaluations)
        for observer in self.observers:
            for evaluation in new:
                observer.trial_evaluated(trial_id=trial_id, evaluation=evaluation)
        return new

    def _write(self, write: Callable[[], None]) -> bool:
        """Returns whether the ledger was written; if not, the search ends after what runs."""
        try:
            write()
        except StorageError as error:
            self.failure = self.failure or error
            return False
        return True


def _unseen(spec: SpecBase) -> RunResult:
    """Returns the result of a run that was stopped by hand before it was evaluated."""
    reason = StopReason.of(StopKind.BY_HAND)
    return RunResult(seed=spec.seed, status=Status.CAPPED, stop_reason=reason)


def trial_seed(study_seed: int, trial_id: str) -> int:
    """Returns the seed of a trial: each has its own, so that no lucky seed wins a whole search."""
    # Studies of different seeds share none before their trial 100,000.
    return study_seed * 100_000 + base.trial_number(trial_id)

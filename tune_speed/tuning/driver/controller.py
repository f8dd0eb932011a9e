"""One search, seen from the driver: what is proposed, learned and steered, until it is over.

The controller knows neither Ray nor time-sharing: whatever runs the trials takes the next one from
`propose`, and reports to `evaluated`, `finished`, `interrupted` and `died`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tune_speed.core.records import Status, StepTime, TrialRecord
from tune_speed.core.words import StopKind, StopReason
from tune_speed.custom.spec import OwnSpec, spec_type
from tune_speed.study.file import StudyFile
from tune_speed.training.trial import Allotment, SpecBase
from tune_speed.tuning.driver.learning import Learning
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.requests import Answer, Set, Stop, Try, accepted, is_paused
from tune_speed.tuning.driver.trial_files import read_trial_file
from tune_speed.tuning.driver.trials import Observer, Trials, with_reason
from tune_speed.tuning.policy.base import Proposal, trial_number


class SearchController:
    """Drives one search from first to last trial."""

    def __init__(
        self,
        *,
        study: StudyFile,
        ledger: Ledger,
        allotment: Allotment,
        observers: Sequence[Observer],
        step_times: Sequence[StepTime] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`step_times` are windows of earlier studies, `now` is a monotonic clock [s]."""
        self.study, self.ledger, self.allotment, self.now = study, ledger, allotment, now
        self.is_paused = is_paused(ledger.answers.values())
        self.stood_s = 0.0
        """Seconds for which it was paused and no trial ran: they are not of the time budget."""
        self.trials = Trials(study, ledger, observers)
        self.learning = Learning(study, ledger, step_times)
        self._started = now()
        self._found_nothing = False  # Until a trial ends: what it shows may change that.
        self._why_settled: StopReason | None = None
        for request, _ in accepted(ledger.answers.values(), Stop):
            if request.trial not in ledger.records:
                self.trials.stopped_before(self._spec(ledger.proposals[request.trial]))
        self.learning.restore()
        self.trials.checkpoints.clear(ledger.records)

    def steered(self, answer: Answer) -> bool:
        """Writes what comes of a person's request, and does it; returns whether it was written."""
        request = answer.request
        if not self.trials.write(lambda: self.ledger.steered(answer)):
            return False
        if answer.refused:
            return True
        self._found_nothing = False
        self.is_paused = is_paused(self.ledger.answers.values())
        if isinstance(request, Try):
            self.learning.policy.try_next(answer.point, reason=request.reason)
        elif isinstance(request, Stop):
            self.finished(self.trials.running[request.trial].stopped())
        elif isinstance(request, Set):
            self._set(request.changes)
        return True

    def _set(self, changes: dict[str, Any]) -> None:
        self.study = replace(self.study, search=self.study.search.model_copy(update=changes))
        cotenants = {"max_cotenants": self.study.search.at_once - 1}
        self.allotment = self.allotment.model_copy(update=cotenants)

    @property
    def num_begun(self) -> int:
        return self.num_finished + len(self.trials.running)

    @property
    def num_finished(self) -> int:
        """Trials with a record, those of earlier sessions included."""
        return len(self.ledger.records)

    @property
    def elapsed_s(self) -> float:
        return self.now() - self._started

    def time_left_s(self) -> float | None:
        """Returns the seconds of the time budget that are left, or None without a budget."""
        budget_s = self.study.search.time_budget_s
        return None if budget_s is None else budget_s - self.elapsed_s + self.stood_s

    def spent(self) -> float:
        by_trials = self.num_begun / self.study.search.trials
        budget_s, left_s = self.study.search.time_budget_s, self.time_left_s()
        by_time = 0.0 if budget_s is None or left_s is None else 1 - left_s / budget_s
        return max(by_trials, by_time)

    @property
    def why_exhausted(self) -> StopReason | None:
        if not self._is_exhausted or self.num_finished >= self.study.search.trials:
            return None
        if self._why_settled is not None:
            return self._why_settled
        has_leader = self.learning.policy.leader is not None
        return StopReason.of(StopKind.NOTHING_BETTER if has_leader else StopKind.NOTHING_LEFT)

    def end(self) -> StopReason | None:
        """Writes why the search ended before its budget was used up, and returns it."""
        why = self.why_exhausted
        if why is not None:
            self.trials.write(lambda: self.ledger.ended(why))
        return why

    def is_over(self) -> bool:
        left_s = self.time_left_s()
        out_of_time = left_s is not None and left_s <= 0
        all_started = self.num_begun >= self.study.search.trials
        has_failed = self.trials.failure is not None
        return out_of_time or all_started or self._is_exhausted or has_failed

    @property
    def _is_exhausted(self) -> bool:
        """Whether the policy found nothing to try, and no running trial could change that."""
        return self._found_nothing and not self.trials.running

    def propose(self) -> SpecBase | None:
        """Returns the next trial, recorded as proposed; None where there is none to come."""
        if self.is_over() or self._found_nothing or self.is_paused:
            return None
        policy = self.learning.policy
        policy.spent = self.spent()
        proposal = policy.ask()
        if proposal is None:
            self._found_nothing = True
            # Asked now: once trials are re-clocked, it is another policy's word.
            self._why_settled = policy.why_settled
            return None
        spec = self._spec(proposal)
        if not self.trials.begin(proposal, spec, cost=self.learning.cost_of(proposal.params)):
            policy.withdraw(proposal.trial_id)
            return None
        return spec

    def _spec(self, proposal: Proposal) -> SpecBase:
        kind, best_weights = spec_type(self.study.workload), self.trials.best_weights
        return kind(
            study=self.study.name,
            trial_id=proposal.trial_id,
            params=proposal.params,
            proposal_reason=proposal.reason,
            recipe=kind.recipe_of(self.study.space.build(proposal.params)),
            workload=self.study.workload,
            workload_hash=self.ledger.workload_hash,
            space_hash=self.study.space.hash,
            # Its own, so that no lucky seed wins; other studies' are others up to trial 100,000.
            seed=self.study.search.seed * 100_000 + trial_number(proposal.trial_id),
            allotment=self.allotment,
            step_times=self.learning.step_times(of_own_steps=kind is OwnSpec),
            due_step_times=self.learning.times.due(now_s=self.elapsed_s),
            keep=None if best_weights is None else best_weights.plan(proposal.trial_id),
            checkpoint=self.trials.checkpoints.plan(proposal.trial_id),
        )

    def evaluated(self, record: TrialRecord) -> StopReason | None:
        """Takes a running trial's record so far; returns why to stop it, or None.

        Of its new evaluations the policy gets those up to the first for which it stops the trial.
        """
        # Trials that begin before it ends need not measure its windows.
        self.learning.times.add(record.runs[-1], now_s=self.elapsed_s)
        for evaluation in self.trials.evaluated(record):
            # The untrained model says nothing of the recipe.
            if evaluation.step == 0:
                continue
            reason = self.learning.policy.report(
                record.trial_id,
                train_s=evaluation.train_s,
                step=evaluation.step,
                metric=self.study.workload.score_of(evaluation),
            )
            if reason is not None:
                self.finished(with_reason(record, reason))
                return reason
        return None

    def finished(self, record: TrialRecord) -> None:
        self._found_nothing = False
        self.learning.finished(record, now_s=self.elapsed_s)
        self.trials.finished(record)

    def interrupted(self, trial_id: str, *, reason: StopReason, is_again: bool = False) -> None:
        """Records that a trial was stopped without an outcome; `is_again`: it is run again now."""
        if is_again:
            self.learning.policy.retry(self.ledger.proposals[trial_id])
        else:
            self.learning.policy.withdraw(trial_id)
        self._found_nothing = False
        self.trials.interrupted(trial_id, reason=reason)

    def died(
        self, trial_id: str, *, reason: StopReason, details: str, is_blameless: bool = False
    ) -> None:
        """Handles a trial whose process is gone: its record is looked up, or it runs again.

        After `search.attempts`, a blameless death not counted, it has failed with `reason`.
        """
        record = read_trial_file(self.ledger.folder, trial_id)
        if record is None and self.trials.may_run_again(trial_id, is_blameless=is_blameless):
            self.interrupted(trial_id, reason=reason.with_figures(runs_again=1), is_again=True)
            return
        trial = self.trials.running[trial_id]
        self.finished(record or trial.without_run(Status.FAILED, reason, details))

    def reclock(self, windows: Sequence[StepTime] = ()) -> tuple[str, ...]:
        """Makes all clocks of the best step times; returns whose changed. No trial runs."""
        assert not self.trials.running, self.trials.running
        used, changed = self.learning.settled(windows)
        if not changed or not self.trials.write(lambda: self.ledger.timed(windows, used)):
            return ()
        self.learning.restart()
        return changed

"""What a search knows: its policy, costs and step times of configurations, and favourites."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from tune_speed.core.records import CLOCKED, Recommended, RunResult, StepTime, TrialRecord
from tune_speed.runtime.pooled_times import pooled
from tune_speed.study.file import StudyFile
from tune_speed.study.space import read_point
from tune_speed.tuning.driver.cost_model import CostModel
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.prior_trials import outcome_of
from tune_speed.tuning.driver.requests import Answer, Try, accepted
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.base import Cost, Outcome, Policy

MOST_RIVALS = 4
"""Configurations that are timed side by side when a search ends."""
WINDOW_S = 1.0
"""What one more window costs about, with the wait for the turn [s]."""
SHARE = 0.01
"""Of a search's time that goes to windows of kinds that were timed before."""
MOST_WINDOWS = 6
AGE_S = 20.0
"""A kind with n windows is timed again once the last is n times so old [s]."""


class WindowHistory:
    """All windows of a search, of earlier ones too."""

    def __init__(self, study: str, windows: Iterable[StepTime]) -> None:
        self._study, self._prefix = study, f"{study}/"
        self._windows: dict[tuple[str, str, str], StepTime] = {}
        self._last_s: dict[str, float] = {}
        """When the last window of each key came, on the search's clock [s]."""
        self._usual: dict[str, float] = {}
        """The machine's speed by place at which times are told during the search."""
        self._pooled: dict[str, StepTime] | None = None
        self._add(windows, now_s=-math.inf)

    def add(self, run: RunResult, *, now_s: float = -math.inf) -> None:
        """Takes a trial's windows, `now_s` into the session; the first run sets the speed."""
        self._add(run.windows, now_s=now_s)
        for each in run.step_times:
            if each.reference_s and each.place:
                self._usual.setdefault(each.place, each.reference_s)

    def _add(self, windows: Iterable[StepTime], *, now_s: float) -> None:
        for each in windows:
            mark = each.measured_in, each.key, each.measured_at
            if mark not in self._windows:
                self._windows[mark], self._pooled = each, None
                self._last_s[each.key] = now_s

    def pooled(self) -> dict[str, StepTime]:
        """Returns the step time of each key, at one speed for the whole search."""
        if self._pooled is None:
            windows = self._windows.values()
            self._pooled = pooled(windows, study=self._study, usual=self._usual)
            for each in self._pooled.values():
                if each.reference_s and each.measured_in.startswith(self._prefix):
                    self._usual.setdefault(each.place, each.reference_s)
        return self._pooled

    def settled(self, windows: Sequence[StepTime] = ()) -> dict[str, StepTime]:
        """Returns the step times by all windows, at the median speed that the search saw."""
        self._add(windows, now_s=math.inf)
        self._usual.clear()
        self._pooled = None
        return self.pooled()

    def due(self, *, now_s: float) -> tuple[str, ...]:
        """Returns the keys worth another window: disturbed or old, within their share of time."""
        own = [each for each in self._windows.values() if each.measured_in.startswith(self._prefix)]
        again = len(own) - len({each.key for each in own})
        if (again + 1) * WINDOW_S > SHARE * now_s:
            return ()

        def is_due(each: StepTime) -> bool:
            n = 0 if each.disturbed else each.num_windows
            return n < MOST_WINDOWS and now_s - self._last_s[each.key] >= n * AGE_S

        return tuple(key for key, each in self.pooled().items() if is_due(each))


class Learning:
    """What a search has learned from its trials, and from those before it."""

    def __init__(self, study: StudyFile, ledger: Ledger, step_times: Sequence[StepTime]) -> None:
        """Learns costs and step times, `step_times` of earlier studies too; no policy yet."""
        self._study, self._ledger = study, ledger
        self.times = WindowHistory(study.name, [*step_times, *ledger.windows])
        self._num_train = study.workload.num_train()
        self._cost_model = None
        if self._num_train is not None:
            self._cost_model = CostModel(study.space, num_train=self._num_train)
        self._past_costs: dict[tuple[tuple[str, Any], ...], Cost | None] = {}
        self.policy = self._make_policy()
        self._learn_all_times()

    def _make_policy(self) -> Policy:
        # SciPy and Optuna take 0.8 s to import.
        from tune_speed.tuning.policies import make_policy
        from tune_speed.tuning.policy.base import Parts
        from tune_speed.tuning.policy.optuna_study import Sampling

        workload, search, space = self._study.workload, self._study.search, self._study.space
        aim = workload.target
        target = base.SearchTarget(
            aim.goal, workload.mode, workload.max_train_s, best=aim.seeks_best
        )
        study_name = f"{self._ledger.workload_hash[:12]}-{space.hash[:12]}"
        return make_policy(
            search.policy,
            base.Problem(space, target, self.cost_of, search.seed),
            sampling=Sampling(search.sampler, search.storage, study_name),
            points=[read_point(space, point) for point in search.points_to_evaluate],
            prior_trials=list(chain.from_iterable(self._ledger.prior_trials.values())),
            parts=Parts(hold_back=search.hold_back, until=search.until),
        )

    def restore(self) -> None:
        proposals, records = self._ledger.proposals, self._ledger.records
        # A policy learns from a trial with the cost that was predicted when it was proposed; the
        # present prediction would give another state than that of a search without a break.
        costs = self._ledger.costs
        self._past_costs = {base.params_key(p.params): costs[i] for i, p in proposals.items()}
        self.policy.restore(
            finished=[(proposals[r.trial_id], self._outcome(r)) for r in records.values()],
            unfinished=self._ledger.unfinished,
            num_taken=max((base.trial_number(each) + 1 for each in proposals), default=0),
        )
        self._past_costs = {}
        for request, answer in self.wanted():
            self.policy.try_next(answer.point, reason=request.reason)

    def wanted(self) -> list[tuple[Try, Answer]]:
        known = {proposal.reason.request_id for proposal in self._ledger.proposals.values()}
        every = accepted(self._ledger.answers.values(), Try)
        return [(request, answer) for request, answer in every if request.id not in known]

    def cost_of(self, params: Mapping[str, Any]) -> Cost | None:
        if self._past_costs and (key := base.params_key(params)) in self._past_costs:
            return self._past_costs[key]
        return None if self._cost_model is None else self._cost_model(params)

    def finished(self, record: TrialRecord, *, now_s: float) -> None:
        self._learn_times(record, now_s=now_s)
        self.policy.finish(record.trial_id, self._outcome(record))

    def _learn_all_times(self) -> None:
        for record in self._ledger.records.values():
            self._learn_times(record)

    def _learn_times(self, record: TrialRecord, *, now_s: float = -math.inf) -> None:
        if self._cost_model is not None:
            self._cost_model.finished(record)
        self.times.add(record.runs[-1], now_s=now_s)

    def _outcome(self, record: TrialRecord) -> Outcome:
        return outcome_of(record, self._study.workload, num_train=self._num_train)

    def step_times(self, *, of_own_steps: bool) -> tuple[StepTime, ...]:
        """Returns what is known of step times; of training functions only how fast places are."""
        known = self.times.pooled()
        if of_own_steps:  # No other's steps are known to be alike.
            known = {each.place: each for each in known.values()}
        return tuple(known.values())

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        """Configurations that met the target, what is recommended first."""
        name, target = self._study.name, self._study.workload.target
        named = (each.model_copy(update={"study": name}) for each in self.policy.favourites)
        return tuple(each.of_scores(target.metric_of) for each in named)

    def rivals(self) -> tuple[TrialRecord, ...]:
        """Returns favourites whose clocks overlap the first's, one a kind of step, or none."""
        found: dict[tuple[str, ...], tuple[TrialRecord, float]] = {}
        for favourite in self.favourites:
            record = self._ledger.records.get(favourite.trial_id)
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

    def settled(self, windows: Sequence[StepTime]) -> tuple[dict[str, StepTime], tuple[str, ...]]:
        """Returns the best step times of all windows, `windows` too, and whose clocks change."""
        best, used, changed = self.times.settled(windows), dict[str, StepTime](), list[str]()
        for record in self._ledger.records.values():
            before = record.runs[-1].step_times
            after = {each.key: best.get(each.key, each) for each in before}
            used |= after
            if tuple(after.values()) != before:
                changed.append(record.trial_id)
        return used, tuple(changed)

    def restart(self) -> None:
        self.policy = self._make_policy()
        self._learn_all_times()
        self.restore()

"""Searches in virtual time: any policy, any number of workers, recorded or modelled trainings.

Each worker asks for a trial, spends `trial_overhead_s` on its start, and then reports every
evaluation of the benchmark's curve when its clock says so.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from tune_speed.core.records import Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policies import make_policy
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.curve import Curve, Mode, crossing

# Trials in a search at most: those out of memory cost no virtual time, so no budget ends them.
MAX_TRIALS = 20_000


class Benchmark(Protocol):
    """Trainings that need not be run."""

    @property
    def name(self) -> str: ...

    @property
    def space(self) -> SearchSpace: ...

    @property
    def target(self) -> float:
        """Metric that counts as reached."""

    @property
    def mode(self) -> Mode:
        """`fixed_length`: the target must hold at a curve's end; `anytime`: see `crossing`."""

    @property
    def full_run_s(self) -> float:
        """Seconds of the longest run."""

    def curve(self, params: Mapping[str, Any]) -> Curve:
        """Returns a whole run of a configuration: the same each time, or another, as with seeds."""

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        """Returns the seconds to the curve's end, known before the trial."""


class Incumbent(NamedTuple):
    """A best time to target, and when it was found."""

    virtual_s: float
    time_to_target_s: float
    params: dict[str, Any]


class SimulatedTrial(NamedTuple):
    """A trial of a simulated search."""

    trial_id: str
    params: dict[str, Any]
    reason: str
    """Why it was proposed."""
    started_s: float
    """Virtual time, as that of its end."""
    ended_s: float
    train_s: float
    """Training clock at its end."""
    status: Status
    stop_reason: str


@dataclass
class Trace:
    """What happened in a simulated search."""

    incumbents: list[Incumbent] = field(default_factory=list)
    """Each new best, in order."""
    trials: list[SimulatedTrial] = field(default_factory=list)
    """Finished trials, in order of their ends."""
    recommended: dict[str, Any] | None = None
    """Configuration that the search recommends at its end; None: none."""
    why_ended: str | None = None
    """Why the policy ended the search before its budget was used up; None: it did not."""

    @property
    def best_s(self) -> float:
        """Best time to target [s]; infinite if none met it."""
        return self.incumbents[-1].time_to_target_s if self.incumbents else math.inf


@dataclass
class _Running:
    proposal: base.Proposal
    curve: Curve
    started_s: float
    hit: int | None
    next_evaluation: int = 0


# Of events at the same virtual time, reports and ends come before proposals, and each kind in the
# order of the trials' numbers: a result must not depend on how a heap sorts what is equal.
_REPORT, _ASK = 0, 1


def new_policy(name: str, benchmark: Benchmark, seed: int) -> base.Policy:
    """Returns the policy of that name; for the best end, if the benchmark has `within_s`.

    Raises: ConfigError if there is no policy of that name.
    """
    within_s = getattr(benchmark, "within_s", None)
    limit_s = math.inf if within_s is None else within_s
    target = base.SearchTarget(benchmark.target, benchmark.mode, limit_s, best=within_s is not None)
    return make_policy(
        name,
        base.Problem(
            benchmark.space, target, lambda p: base.Cost(benchmark.predicted_cost(p)), seed
        ),
    )


def run_policy(
    policy: base.Policy,
    benchmark: Benchmark,
    *,
    num_workers: int,
    budget_s: float,
    trial_overhead_s: float = 0.0,
) -> Trace:
    """Returns what a policy finds within `budget_s` of virtual time."""
    return _Simulation(policy, benchmark, trial_overhead_s).run(num_workers, budget_s)


class _Simulation:
    def __init__(self, policy: base.Policy, benchmark: Benchmark, overhead_s: float) -> None:
        self._policy, self._benchmark, self._overhead_s = policy, benchmark, overhead_s
        self._limit_s = getattr(benchmark, "within_s", math.inf)
        # (virtual time, kind, number of the trial, worker)
        self._events: list[tuple[float, int, int, int]] = []
        self._running: dict[int, _Running] = {}
        self._idle: list[int] = []
        self._trace = Trace()

    def run(self, num_workers: int, budget_s: float) -> Trace:
        for worker in range(num_workers):
            heapq.heappush(self._events, (0.0, _ASK, 0, worker))
        while self._events and len(self._trace.trials) < MAX_TRIALS:
            now_s, kind, number, worker = heapq.heappop(self._events)
            # What still runs has no outcome: a search whose time is over would stop it, too.
            if now_s > budget_s:
                break
            if kind == _REPORT:
                trial = self._running[number]
                if (how := self._ending(trial)) is None:
                    self._push(trial, worker)
                else:
                    self._end(now_s, worker, trial, *how)
                continue
            self._policy.spent = now_s / budget_s
            if (proposal := self._policy.ask()) is None:
                self._idle.append(worker)
            else:
                curve = self._benchmark.curve(proposal.params)
                hit = crossing(curve, target=self._benchmark.target, mode=self._benchmark.mode)
                trial = _Running(proposal, curve, now_s, hit)
                self._running[base.trial_number(proposal.trial_id)] = trial
                self._push(trial, worker)
        settled = self._policy.why_settled
        self._trace.why_ended = None if settled is None else str(settled)
        found = {trial.trial_id: trial.params for trial in self._trace.trials}
        best = self._policy.favourites
        self._trace.recommended = found[best[0].trial_id] if best else None
        return self._trace

    def _push(self, trial: _Running, worker: int) -> None:
        index, clock = trial.next_evaluation, trial.curve.train_s
        train_s = float(clock[index]) if len(clock) else 0.0
        at_s = trial.started_s + self._overhead_s + train_s
        number = base.trial_number(trial.proposal.trial_id)
        heapq.heappush(self._events, (at_s, _REPORT, number, worker))

    def _ending(self, trial: _Running) -> tuple[Status, str] | None:
        """Reports the next evaluation; returns how the trial ends there, or None if it runs on."""
        curve, index = trial.curve, trial.next_evaluation
        if not len(curve.train_s):
            return Status.OOM, "out of memory"
        trial.next_evaluation += 1
        train_s, metric = float(curve.train_s[index]), float(curve.metric[index])
        if not math.isfinite(metric):
            return Status.DIVERGED, "the metric is not a number"
        if train_s > self._limit_s:
            return Status.CAPPED, "the time limit has passed"
        # In `anytime` mode the second of two passes confirms the first, and the run ends there.
        last = len(curve.train_s) - 1
        if trial.hit is not None and index == min(last, trial.hit + 1):
            return Status.REACHED, "target met"
        if index == last:
            return Status.MISSED, "missed"
        trial_id = trial.proposal.trial_id
        reason = self._policy.report(trial_id, train_s=train_s, step=index + 1, metric=metric)
        return None if reason is None else (Status.CAPPED, str(reason))

    def _end(self, now_s: float, worker: int, trial: _Running, status: Status, reason: str) -> None:
        seen = slice(0, trial.next_evaluation)
        curve = Curve(np.asarray(trial.curve.train_s)[seen], np.asarray(trial.curve.metric)[seen])
        train_s = curve.end_s
        if status == Status.REACHED:
            assert trial.hit is not None
            train_s = float(curve.train_s[trial.hit])
            if train_s < self._trace.best_s:
                self._trace.incumbents.append(Incumbent(now_s, train_s, trial.proposal.params))
        proposal = trial.proposal
        del self._running[base.trial_number(proposal.trial_id)]
        self._policy.finish(proposal.trial_id, base.Outcome(status, train_s, curve))
        times_s = (trial.started_s, now_s, curve.end_s)
        which = (proposal.trial_id, proposal.params, str(proposal.reason))
        self._trace.trials.append(SimulatedTrial(*which, *times_s, status, reason))
        # A policy that found nothing to try may find something after what this trial has shown.
        for free in sorted([worker, *self._idle]):
            heapq.heappush(self._events, (now_s, _ASK, 0, free))
        self._idle.clear()

"""All that a policy has seen: running and finished trials, and their curves on one axis."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tune_speed.core.records import Status
from tune_speed.tuning.policy.acquisition import Evidence
from tune_speed.tuning.policy.base import (
    Cost,
    CostOf,
    Earlier,
    Leader,
    Outcome,
    Proposal,
    SearchTarget,
    better,
    params_key,
    trial_number,
)
from tune_speed.tuning.policy.curve import Curve, FloatArray
from tune_speed.tuning.policy.curve_table import CurveTable, distance, make_row
from tune_speed.tuning.policy.encoding import Encoder

SCHEDULE_PLACES = np.arange(1, 33) / 32
"""Places on a schedule of fixed length, at which curves are compared."""
CLOCK_PLACES = 2.0 ** (np.arange(-48, 1) / 8)
"""Fractions of the time to beat, at which curves of free length are compared."""
OCTAVES_BEFORE = (0, 2, 4, 8, 12)
"""Places before the last, an eighth of an octave apart, that the model looks at."""


@dataclass
class Trial:
    """A trial, from its proposal on."""

    number: int
    """Of the study, from 0; below 0 for trials of other studies."""
    proposal: Proposal
    units: FloatArray
    """(P,), see `encoding`."""
    cost: Cost | None
    clock: list[float] = field(default_factory=list)
    """Training clock at each report [s]."""
    metric: list[float] = field(default_factory=list)
    """The target metric at each report."""
    step: int = 0
    """Of the last report."""
    rung: int = 0
    """Rungs that it has passed."""
    outcome: Outcome | None = None
    _row: tuple[float | None, FloatArray] | None = None

    @property
    def cost_s(self) -> float:
        """Seconds to its end as far as they are known for sure; NaN if not."""
        return self.cost.train_s if self.cost is not None else math.nan

    @property
    def likely_s(self) -> float:
        """Seconds to its end: what it took, or would have, or is most likely to; NaN if unknown."""
        return self.planned_s() if self.outcome is not None else self._guess_s

    @property
    def _guess_s(self) -> float:
        return self.cost.likely_s if self.cost is not None else math.nan

    def projected_s(self) -> float:
        """Returns where its clock is going to end [s]; NaN if not known."""
        if self.cost is not None and self.cost.num_steps and self.step:
            return self.clock[-1] * self.cost.num_steps / self.step
        return self.cost_s

    def planned_s(self) -> float:
        """Returns the end of its schedule on its clock [s], now that it has finished."""
        assert self.outcome is not None
        if self.outcome.status in WHOLE:
            return self.outcome.curve.end_s
        return self.outcome.planned_s or self._guess_s


WHOLE = (Status.REACHED, Status.MISSED)
"""How trials end that nobody stopped."""


class History:
    """The trials of a policy."""

    def __init__(
        self, *, encoder: Encoder, goal: SearchTarget, cost_of: CostOf, share_first: bool = True
    ) -> None:
        self._share_first = share_first
        self.encoder, self.goal, self._cost_of = encoder, goal, cost_of
        self.running: dict[str, Trial] = {}
        self.leader: Leader | None = None
        self.start_y = float(distance(0.0, goal.target))
        """Distance before any training."""
        self.num_proposed = 0
        self._finished: dict[int, Trial] = {}
        self._tried: set[tuple[tuple[str, Any], ...]] = set()
        self._table: tuple[float | None, CurveTable] | None = None

    @property
    def knows_length(self) -> bool:
        """Whether a run's length is fixed before it starts."""
        return self.goal.mode == "fixed_length"

    @property
    def by_share(self) -> bool:
        """Whether runs are compared by the share of their schedule that is done.

        Where the length is free, by their clocks once there is a time to beat. Before, equal shares
        are the better measure: what a run shows early hangs on its schedule.
        """
        return self.knows_length or (self._share_first and self.leader is None)

    @property
    def fractions(self) -> tuple[float, ...]:
        """Fractions of the axis that the model looks at, falling from 1."""
        return (1.0,) if self.by_share else tuple(2.0 ** (-k / 8) for k in OCTAVES_BEFORE)

    def count(self, proposal: Proposal) -> None:
        """Takes note of a proposal: neither its number nor its configuration comes again."""
        self._tried.add(params_key(proposal.params))
        self.num_proposed = max(self.num_proposed, trial_number(proposal.trial_id) + 1)

    def was_tried(self, params: Mapping[str, Any]) -> bool:
        """Returns whether a configuration was proposed before."""
        return params_key(params) in self._tried

    def begin(self, proposal: Proposal) -> None:
        """Takes in a trial that starts."""
        self.count(proposal)
        number = trial_number(proposal.trial_id)
        self.running[proposal.trial_id] = self._trial(number, proposal)

    def finish(self, trial_id: str, outcome: Outcome) -> Trial:
        """Takes in how a trial ended, and returns it."""
        trial = self.running.pop(trial_id)
        trial.outcome, trial.clock, trial.metric = outcome, [], []
        self.leader = better(self.leader, trial_id, outcome)
        self._keep(trial)
        return trial

    def add_earlier(self, earlier: Earlier) -> None:
        """Takes in a trial of another study. It teaches, but never leads, and may be tried again.

        Without comparable times it says nothing where the length is free, and nothing of memory.
        """
        status = earlier.outcome.status
        tells_time = status == Status.OOM or not self.knows_length
        if tells_time and not earlier.same_times:
            return
        number = -1 - sum(number < 0 for number in self._finished)
        trial = self._trial(number, Proposal(f"e{-number}", earlier.params))
        trial.outcome = earlier.outcome
        self._keep(trial)

    def _trial(self, number: int, proposal: Proposal) -> Trial:
        units = self.encoder.units(proposal.params)
        return Trial(number, proposal, units, self._cost_of(proposal.params))

    def _keep(self, trial: Trial) -> None:
        assert trial.outcome is not None
        if trial.outcome.status != Status.FAILED:
            self._finished[trial.number] = trial
        self._table = None

    @property
    def finished(self) -> list[Trial]:
        """Trials whose outcome says something about their configuration, by their numbers."""
        return [trial for _, trial in sorted(self._finished.items())]

    def longest_s(self) -> float:
        """Returns the longest run's cost so far [s], at most the time limit; NaN if unknown."""
        every = [*self._finished.values(), *self.running.values()]
        costs = [trial.cost.likely_s for trial in every if trial.cost is not None]
        longest_s = max(costs, default=self.goal.max_train_s)
        longest_s = min(longest_s, self.goal.max_train_s)
        return longest_s if math.isfinite(longest_s) else math.nan

    def spent_s(self) -> float:
        """Returns what the study's finished trials took, on their training clocks [s]."""
        own = [trial for trial in self._finished.values() if trial.number >= 0]
        return sum(t.outcome.curve.end_s for t in own if t.outcome is not None)

    def to_beat_s(self) -> float:
        """Returns the leader's time; before there is one, the longest run's [s]."""
        return self.leader.time_to_target_s if self.leader is not None else self.longest_s()

    def table(self) -> CurveTable:
        """Returns the finished trials' curves, on their schedules or on the time to beat."""
        places = SCHEDULE_PLACES if self.knows_length else CLOCK_PLACES
        end_s = None if self.by_share else self.to_beat_s()
        if self._table is None or self._table[0] != end_s:
            rows = [self._row(trial, places, end_s) for trial in self.finished]
            self._table = (end_s, CurveTable(places, rows))
        return self._table[1]

    def _row(self, trial: Trial, places: FloatArray, end_s: float | None) -> FloatArray:
        """Returns a trial's row (G,) of the table; `end_s` None: over its own schedule."""
        if trial._row is None or trial._row[0] != end_s:
            trial._row = (end_s, self._new_row(trial, places, end_s))
        return trial._row[1]

    def _new_row(self, trial: Trial, places: FloatArray, end_s: float | None) -> FloatArray:
        assert trial.outcome is not None
        curve = _finite(trial.outcome.curve)
        return make_row(
            places,
            curve.train_s / (self._schedule_s(trial) if end_s is None else end_s),
            distance(curve.metric, self.goal.target),
            start=self.start_y,
            is_whole=trial.outcome.status in WHOLE,
        )

    def _schedule_s(self, trial: Trial) -> float:
        """Returns the end of a finished trial's schedule [s], or what comes nearest to it."""
        planned_s = trial.planned_s()
        return planned_s if math.isfinite(planned_s) else self.longest_s()

    def heading(self, trial: Trial) -> float:
        """Returns the distance that a stopped trial's curve is forecast to end at."""
        position = self.finished.index(trial)
        ends, _ = self.table().extended([len(self.table().places) - 1])
        end = float(ends[position, 0])
        return end if math.isfinite(end) else self.start_y

    def evidence(self, *, graded: bool, memory: bool) -> Evidence:
        """Returns the finished trials as the model takes them."""
        trials, num_places = self.finished, len(self.table().places)
        octaves = (0,) if self.by_share else OCTAVES_BEFORE
        distances, scales = self.table().extended([num_places - 1 - k for k in octaves])
        outcomes = [t.outcome for t in trials if t.outcome is not None]
        is_void = np.array([_is_void(o, graded=graded) for o in outcomes], dtype=bool)
        is_void |= np.isnan(distances).any(axis=1)
        distances[is_void] = self.start_y
        variances = np.where(is_void, 0.0, scales**2)
        ranks = list(map(_rank, outcomes, distances.max(axis=1)))
        return Evidence(
            units=np.array([t.units for t in trials]).reshape(
                len(trials), len(self.encoder.parameters)
            ),
            costs=np.array([t.likely_s for t in trials]),
            distances=distances,
            variances=variances,
            ranks=np.array(ranks),
            fits=np.array([o.status != Status.OOM or not memory for o in outcomes], dtype=bool),
        )


def _finite(curve: Curve) -> Curve:
    """Returns a curve without what came after the metric was no number."""
    metric = np.asarray(curve.metric, dtype=float)
    seen = np.isfinite(metric)
    return Curve(np.asarray(curve.train_s, dtype=float)[seen], metric[seen])


def _is_void(outcome: Outcome, *, graded: bool) -> bool:
    """Returns whether a curve says no more than that the target was missed by far."""
    is_flat = not graded and outcome.status != Status.REACHED
    return is_flat or outcome.status == Status.DIVERGED


def _rank(outcome: Outcome, best_y: float) -> float:
    """Returns how good a trial is to search around: what reached first, by its time."""
    if outcome.status == Status.OOM:
        return -math.inf
    if outcome.status == Status.REACHED:
        return 100.0 - math.log(max(outcome.train_s, 1e-9))
    return min(best_y, 0.0)

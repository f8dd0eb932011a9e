"""What a policy has observed: running and finished trials, and their curves on one axis."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tune_speed.core.records import Recommended, Status
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.acquisition import Brackets, Evidence
from tune_speed.tuning.policy.base import Leader, Outcome, Parts, Problem, Proposal
from tune_speed.tuning.policy.curve import CurveTable, FloatArray, distance, make_row
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.expected_time import RELIABLE
from tune_speed.tuning.policy.trials import WHOLE, Ended, Trial

SCHEDULE_PLACES = np.arange(1, 33) / 32
"""Places on a schedule of fixed length, at which curves are compared."""
CLOCK_PLACES = 2.0 ** (np.arange(-48, 1) / 8)
"""Fractions of the time to beat, at which curves of free length are compared."""
# Places before the last, an eighth of an octave apart, that the model predicts.
OCTAVES_BEFORE = (0, 2, 4, 8, 12)


class History:
    """The trials of a policy."""

    def __init__(self, problem: Problem, parts: Parts) -> None:
        self.encoder, self.target = Encoder(problem.space), problem.target
        self.cost_of = problem.cost_of
        self.ended = Ended(self.encoder, self.target, parts.most_trials)
        self.running: dict[str, Trial] = {}
        self.leader: Leader | None = None
        self.favourites: tuple[Recommended, ...] = ()
        """Configurations by their expected times to target, once a model says these."""
        self.leading_s: float | None = None
        """E of the first by the model [s], as `expected_time` has it; None: there is no model."""
        self.num_proposed = 0
        self._num_prior = 0
        self._tried: dict[base.ParamsKey, set[int]] = {}  # With the numbers of its trials.
        self._table: tuple[float | None, CurveTable] | None = None

    @property
    def knows_length(self) -> bool:
        return self.target.mode == "fixed_length"

    @property
    def start_y(self) -> float:
        return float(distance(0.0, self.ended.level))

    @property
    def by_share(self) -> bool:
        """Whether runs are compared by the share of their schedule that is done, or by clocks."""
        # By shares until there is a time to beat: an early metric depends on the schedule.
        return self.knows_length or self.leader is None

    @property
    def fractions(self) -> tuple[float, ...]:
        """Fractions of the axis that the model predicts, falling from 1."""
        return (1.0,) if self.by_share else tuple(2.0 ** (-k / 8) for k in OCTAVES_BEFORE)

    def count(self, proposal: Proposal) -> None:
        """Counts a proposal, so that neither its number nor its configuration is proposed again."""
        number = base.trial_number(proposal.trial_id)
        self._tried.setdefault(self.encoder.key(proposal.params), set()).add(number)
        self.num_proposed = max(self.num_proposed, number + 1)

    def was_tried(self, params: Mapping[str, Any]) -> bool:
        return self.encoder.key(params) in self._tried

    def times_tried(self, params: Mapping[str, Any]) -> int:
        return len(self._tried.get(self.encoder.key(params), ()))

    def begin(self, proposal: Proposal) -> None:
        self.count(proposal)
        number = base.trial_number(proposal.trial_id)
        trial = self._trial(number, proposal)
        trial.again = min(self._tried[self.encoder.key(proposal.params)]) < number
        self.running[proposal.trial_id] = trial

    def finish(self, trial_id: str, outcome: Outcome) -> Trial:
        trial = self.running.pop(trial_id)
        trial.outcome, trial.clock, trial.metric = outcome, [], []
        self.leader = base.better(self.leader, trial_id, outcome, by_end=self.target.best)
        self._add(trial)
        return trial

    def add_prior(self, prior: base.PriorTrial) -> None:
        """Adds a trial of another study. It informs the model, but never leads."""
        # Without comparable times it says nothing where the length is free, nor of memory.
        needs_times = prior.outcome.status == Status.OOM or not self.knows_length
        if needs_times and not prior.same_times:
            return
        self._num_prior += 1
        name = f"e{self._num_prior}"
        trial = self._trial(-self._num_prior, Proposal(name, prior.params))
        trial.outcome, trial.is_foreign = prior.outcome, not prior.same_times
        self._add(trial)

    def _trial(self, number: int, proposal: Proposal) -> Trial:
        units = self.encoder.units(proposal.params)
        return Trial(number, proposal, units, self.cost_of(proposal.params))

    def _add(self, trial: Trial) -> None:
        if trial.ended.status != Status.FAILED:
            self.ended.add(trial)
            self._table = None

    def longest_s(self) -> float:
        """Returns the longest run's cost so far [s], at most the time limit; NaN if unknown."""
        limit_s = self.target.max_train_s
        costs = [t.cost.likely_s for t in self.running.values() if t.cost is not None]
        longest_s = max([*costs, self.ended.longest_s])
        longest_s = min(limit_s if longest_s == -math.inf else longest_s, limit_s)
        return longest_s if math.isfinite(longest_s) else math.nan

    def brackets(self) -> Brackets | None:
        """Returns what the study's runs took or will take; None where costs are not known."""
        longest_s = self.longest_s()
        if not self.knows_length or math.isnan(longest_s):
            return None
        own = [trial for trial in self.ended.trials if trial.number >= 0]
        took = [(trial.likely_s, trial.ended.curve.end_s) for trial in own]
        took += [(trial.likely_s, trial.likely_s) for trial in self.running.values()]
        cost_s, spent_s = np.nan_to_num(np.array(took).reshape(-1, 2)).T
        return Brackets.of_runs(longest_s, cost_s, spent_s)

    def to_beat_s(self) -> float:
        """Returns the time in which a run must meet the target to be of use [s]."""
        if self.target.best:
            return self.target.max_train_s
        if self.leader is None:
            return self.longest_s()
        if self.knows_length and self.leading_s is not None:
            return self.leading_s
        if self.knows_length:
            best = (*self.favourites, *base.alone(self.leader))[0]
            return best.expected_s * max(1.0, RELIABLE * best.runs / best.hits)
        return min(known.cautious_s for known in self.ended.known())

    def table(self) -> CurveTable:
        """Returns the finished trials' curves, on their schedules or on the time to beat."""
        places = SCHEDULE_PLACES if self.knows_length else CLOCK_PLACES
        end_s = None if self.by_share else self.to_beat_s()
        if self._table is None or self._table[0] != end_s:
            rows = []
            for trial in self.ended.trials:
                if trial.row is None or trial.row[0] != end_s:
                    trial.row = (end_s, self._row(trial, places, end_s))
                rows.append(trial.row[1])
            self._table = (end_s, CurveTable(places, rows))
        return self._table[1]

    def _row(self, trial: Trial, places: FloatArray, end_s: float | None) -> FloatArray:
        curve = trial.ended.curve
        if end_s is None:
            planned_s = trial.planned_s()
            end_s = planned_s if math.isfinite(planned_s) else self.longest_s()
        metric = np.asarray(curve.metric, dtype=float)
        seen = np.isfinite(metric)  # Without what a run reported after it diverged.
        return make_row(
            places,
            np.asarray(curve.train_s, dtype=float)[seen] / end_s,
            distance(metric[seen], self.ended.level),
            start=self.start_y,
            is_whole=trial.ended.status in WHOLE,
        )

    def forecast_end(self, trial: Trial) -> float:
        position = self.ended.trials.index(trial)
        ends, _ = self.table().extended([len(self.table().places) - 1])
        end = float(ends[position, 0])
        return end if math.isfinite(end) else self.start_y

    def _cost_here_s(self, trial: Trial) -> float:
        """Returns what a finished trial took [s], or is likely to take on this clock; or NaN."""
        if not trial.is_foreign:
            return trial.likely_s
        cost = self.cost_of(trial.proposal.params)
        return math.nan if cost is None else cost.likely_s

    def evidence(self) -> Evidence:
        trials, num_places = self.ended.trials, len(self.table().places)
        octaves = (0,) if self.by_share else OCTAVES_BEFORE
        distances, scales = self.table().extended([num_places - 1 - k for k in octaves])
        outcomes = [trial.ended for trial in trials]
        is_void = np.array([o.status == Status.DIVERGED for o in outcomes], dtype=bool)
        is_void |= np.isnan(distances).any(axis=1)
        distances[is_void] = self.start_y
        units = np.array([t.units for t in trials])
        return Evidence(
            units=units.reshape(len(trials), len(self.encoder.parameters)),
            costs=np.array([self._cost_here_s(trial) for trial in trials]),
            distances=distances,
            variances=np.where(is_void, 0.0, scales**2),
            ranks=np.array(list(map(self.ended.rank, outcomes, distances.max(axis=1)))),
            fits=np.array([o.status != Status.OOM for o in outcomes], dtype=bool),
        )

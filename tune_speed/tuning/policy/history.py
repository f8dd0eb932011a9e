"""What a policy has observed: running and finished trials, and their curves on one axis."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tune_speed.core.records import ENDS, Recommended, Status
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.acquisition import Evidence
from tune_speed.tuning.policy.base import Cost, Leader, Outcome, Proposal
from tune_speed.tuning.policy.curve import CurveTable, FloatArray, distance, make_row
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.expected_time import RELIABLE
from tune_speed.tuning.policy.settings import Parts

SCHEDULE_PLACES = np.arange(1, 33) / 32
"""Places on a schedule of fixed length, at which curves are compared."""
CLOCK_PLACES = 2.0 ** (np.arange(-48, 1) / 8)
"""Fractions of the time to beat, at which curves of free length are compared."""
# Places before the last, an eighth of an octave apart, that the model predicts.
OCTAVES_BEFORE = (0, 2, 4, 8, 12)
LUCK = 0.25
"""Share by which a configuration's time may be longer than its only run's."""
WHOLE = (Status.REACHED, Status.MISSED)
"""How trials end that nobody stopped."""


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
    again: bool = False
    """Whether its configuration was proposed before."""
    is_foreign: bool = False
    """Whether its clock was another one."""
    outcome: Outcome | None = None
    row: tuple[float | None, FloatArray] | None = None
    """Its row of the table, and the end of the axis for which that was computed."""

    @property
    def met(self) -> bool:
        return self.outcome is not None and self.outcome.status == Status.REACHED

    @property
    def is_oom(self) -> bool:
        return self.outcome is not None and self.outcome.status == Status.OOM

    @property
    def cost_s(self) -> float:
        """Lower bound of the seconds to its end; NaN if not known."""
        return self.cost.train_s if self.cost is not None else math.nan

    @property
    def likely_s(self) -> float:
        """Seconds to its end, measured or else predicted; NaN if unknown."""
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


class Known(NamedTuple):
    """What the runs of one configuration say."""

    runs: list[Trial]
    hits: int
    expected_s: float
    """All time over hits [s]."""

    @property
    def params(self) -> dict[str, Any]:
        return self.runs[0].proposal.params

    @property
    def fastest(self) -> str:
        """The trial of the fastest run; of equal ones, of the best end, as on boards."""
        met = [(trial, trial.outcome) for trial in self.runs if trial.met and trial.outcome]
        return min(met, key=lambda m: (_spent_s(m[0]), -m[1].curve.metric[-1]))[0].proposal.trial_id

    @property
    def cautious_s(self) -> float:
        """Expected time [s] if its runs were lucky."""
        return self.expected_s * (1 + LUCK / len(self.runs))

    @property
    def hopeful_s(self) -> float:
        """Expected time [s] if they were not."""
        return self.expected_s * (1 - LUCK / math.sqrt(len(self.runs)))


class History:
    """The trials of a policy."""

    def __init__(
        self,
        encoder: Encoder,
        target: base.SearchTarget,
        cost_of: base.CostOf,
        parts: Parts,
    ) -> None:
        self._share_first, self._most_trials = parts.share_first, parts.most_trials
        self.encoder, self.target, self._cost_of = encoder, target, cost_of
        self.running: dict[str, Trial] = {}
        self.leader: Leader | None = None
        self.ends: dict[str, float] = {}
        """Metric at the end of each trial that ended in time, where the best is sought."""
        self.favourites: tuple[Recommended, ...] = ()
        """Configurations by their expected times to target, once a model says these."""
        self.level = target.value
        """Metric from which distances are measured: the target, or where the best metric is sought
        the best so far, about which the scale is finest."""
        self.num_proposed = 0
        self.num_finished = 0
        """Trials that did not fail, those of other studies included."""
        self.spent_s = 0.0
        """What the study's finished trials took, on their training clocks."""
        self._num_prior, self._longest_s = 0, -math.inf
        self._finished: dict[int, Trial] = {}
        self._tried: dict[base.ParamsKey, set[int]] = {}  # With the numbers of its trials.
        self._table: tuple[float | None, CurveTable] | None = None
        self._sorted: list[Trial] | None = None
        self._configurations: dict[base.ParamsKey, list[Trial]] | None = None
        self._known: list[Known] | None = None

    @property
    def knows_length(self) -> bool:
        """Whether a run's length is fixed before it starts."""
        return self.target.mode == "fixed_length"

    @property
    def start_y(self) -> float:
        """Distance before any training."""
        return float(distance(0.0, self.level))

    @property
    def by_share(self) -> bool:
        """Whether runs are compared by the share of their schedule that is done.

        Where the length is free, by their clocks once there is a time to beat.
        """
        # Before, equal shares are the better measure: a run's early metric depends on its schedule.
        return self.knows_length or (self._share_first and self.leader is None)

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
        ends = self.ends if self.target.best else None
        self.leader = base.better(self.leader, trial_id, outcome, ends=ends)
        self._add(trial)
        return trial

    def add_prior(self, prior: base.PriorTrial) -> None:
        """Adds a trial of another study. It informs the model, but never leads.

        Without comparable times it says nothing where the length is free, and nothing of memory.
        """
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
        return Trial(number, proposal, units, self._cost_of(proposal.params))

    def _add(self, trial: Trial) -> None:
        assert trial.outcome is not None
        if trial.outcome.status == Status.FAILED:
            return
        self._finished[trial.number] = trial
        self.num_finished += 1
        self.spent_s += trial.outcome.curve.end_s if trial.number >= 0 else 0.0
        self._longest_s = max(self._longest_s, trial.cost.likely_s if trial.cost else -math.inf)
        self._table = self._sorted = self._configurations = self._known = None
        self._raise_level(trial.outcome)
        if len(self._finished) >= 2 * self._most_trials:
            self._thin_out({trial.number})

    def _raise_level(self, outcome: Outcome) -> None:
        if not self.target.best or outcome.status != Status.REACHED:
            return
        if (end := float(outcome.curve.metric[-1])) > self.level:
            self.level = end
            for trial in (*self._finished.values(), *self.running.values()):
                trial.row = None

    def _thin_out(self, kept: set[int]) -> None:
        """Forgets half of the trials but `kept`; of a configuration all runs stay, or none.

        Half of what stays is the best, a quarter the newest, and a quarter of every quality.
        """
        own = self._by_params(self.finished)
        best = sorted(own.values(), key=self._promise, reverse=True)
        newest = [own[self.encoder.key(trial.proposal.params)] for trial in self.finished[::-1]]
        quarter = max(self._most_trials // 4, 1)
        evenly = best[:: max(len(best) // quarter, 1)]
        for limit, runs in ((2 * quarter, best), (3 * quarter, newest), (4 * quarter, evenly)):
            for each in runs:
                if len(kept) < limit:
                    kept.update(trial.number for trial in each)
        self._finished = {number: self._finished[number] for number in kept}
        self._sorted = None

    def _promise(self, runs: Sequence[Trial]) -> float:
        """Returns how good a configuration is, larger is better; with one more miss if it met."""
        ends = [trial for trial in runs if self._is_run(trial)]
        hits = sum(trial.met for trial in ends)
        if hits and not self.target.best:
            return _rank_of_time(sum(map(_spent_s, ends)) / hits * (1 + 1 / len(ends)))
        outcomes = [trial.outcome for trial in runs if trial.outcome is not None]
        best = [-math.inf if o.best_metric is None else o.best_metric for o in outcomes]
        return max(map(self._rank, outcomes, distance(best, self.level)))

    def _rank(self, outcome: Outcome, best_y: float) -> float:
        """Returns how good a trial is to search around; those that reached come first, by time."""
        if outcome.status == Status.OOM:
            return -math.inf
        if outcome.status == Status.REACHED and not self.target.best:
            return _rank_of_time(outcome.train_s)
        return min(best_y, 0.0)

    @property
    def finished(self) -> list[Trial]:
        """Trials that did not fail, by their numbers; of very many, those that say most."""
        if self._sorted is None:
            self._sorted = [trial for _, trial in sorted(self._finished.items())]
        return self._sorted

    def longest_s(self) -> float:
        """Returns the longest run's cost so far [s], at most the time limit; NaN if unknown."""
        limit_s = self.target.max_train_s
        costs = [t.cost.likely_s for t in self.running.values() if t.cost is not None]
        longest_s = max([*costs, self._longest_s])
        longest_s = min(limit_s if longest_s == -math.inf else longest_s, limit_s)
        return longest_s if math.isfinite(longest_s) else math.nan

    def to_beat_s(self) -> float:
        """Returns the time in which a run must meet the target to be of use [s].

        That is the recommended configuration's expected time with restarts; before any met the
        target, the longest run's. Where the best metric is sought, it is the time limit.
        """
        if self.target.best:
            return self.target.max_train_s
        if self.leader is None:
            return self.longest_s()
        if self.knows_length:
            best = (*self.favourites, *base.alone(self.leader))[0]
            return best.expected_s * max(1.0, RELIABLE / (best.chance or 1.0))
        return min(known.cautious_s for known in self.known())

    def known(self) -> list[Known]:
        """Returns what the runs of each configuration say that met the target, without a model."""
        if self._known is None:  # Each report of a trial asks for the time to beat.
            self._known = [
                Known(runs, hits, sum(map(_spent_s, runs)) / hits)
                for runs in self.configurations().values()
                if (hits := sum(trial.met for trial in runs))
            ]
        return self._known

    def configurations(self) -> dict[base.ParamsKey, list[Trial]]:
        """Returns the study's runs to their ends, by configuration.

        Where the length is free, one that was run again and stopped counts: it took too long.
        """
        if self._configurations is None:
            self._configurations = self._by_params(filter(self._is_run, self.finished))
        return self._configurations

    def runs_of(self, params: Mapping[str, Any]) -> list[Trial]:
        return self.configurations()[self.encoder.key(params)]

    def _by_params(self, trials: Iterable[Trial]) -> dict[base.ParamsKey, list[Trial]]:
        found: dict[base.ParamsKey, list[Trial]] = {}
        for trial in trials:
            found.setdefault(self.encoder.key(trial.proposal.params), []).append(trial)
        return found

    def _is_run(self, trial: Trial) -> bool:
        status = trial.outcome and trial.outcome.status
        is_late = status == Status.CAPPED and trial.again and not self.knows_length
        is_late = is_late and trial.outcome is not None and not trial.outcome.by_hand
        return trial.number >= 0 and (status in ENDS or is_late)

    def table(self) -> CurveTable:
        """Returns the finished trials' curves, on their schedules or on the time to beat."""
        places = SCHEDULE_PLACES if self.knows_length else CLOCK_PLACES
        end_s = None if self.by_share else self.to_beat_s()
        if self._table is None or self._table[0] != end_s:
            rows = []
            for trial in self.finished:
                if trial.row is None or trial.row[0] != end_s:
                    trial.row = (end_s, self._row(trial, places, end_s))
                rows.append(trial.row[1])
            self._table = (end_s, CurveTable(places, rows))
        return self._table[1]

    def _row(self, trial: Trial, places: FloatArray, end_s: float | None) -> FloatArray:
        """Returns a trial's row (G,) of the table; `end_s` None: over its own schedule."""
        assert trial.outcome is not None
        if end_s is None:
            planned_s = trial.planned_s()
            end_s = planned_s if math.isfinite(planned_s) else self.longest_s()
        metric = np.asarray(trial.outcome.curve.metric, dtype=float)
        seen = np.isfinite(metric)  # Without what a run reported after it diverged.
        return make_row(
            places,
            np.asarray(trial.outcome.curve.train_s, dtype=float)[seen] / end_s,
            distance(metric[seen], self.level),
            start=self.start_y,
            is_whole=trial.outcome.status in WHOLE,
        )

    def forecast_end(self, trial: Trial) -> float:
        """Returns the distance at which a stopped trial's curve is forecast to end."""
        position = self.finished.index(trial)
        ends, _ = self.table().extended([len(self.table().places) - 1])
        end = float(ends[position, 0])
        return end if math.isfinite(end) else self.start_y

    def _cost_here_s(self, trial: Trial) -> float:
        """Returns what a finished trial took [s], or is likely to take on this clock; or NaN."""
        if not trial.is_foreign:
            return trial.likely_s
        cost = self._cost_of(trial.proposal.params)
        return math.nan if cost is None else cost.likely_s

    def evidence(self, *, graded: bool, memory: bool) -> Evidence:
        """Returns the finished trials as the model is conditioned on them."""
        trials, num_places = self.finished, len(self.table().places)
        octaves = (0,) if self.by_share else OCTAVES_BEFORE
        distances, scales = self.table().extended([num_places - 1 - k for k in octaves])
        outcomes = [t.outcome for t in trials if t.outcome is not None]
        no_metric = [Status.DIVERGED] if graded else [s for s in Status if s != Status.REACHED]
        is_void = np.array([o.status in no_metric for o in outcomes], dtype=bool)
        is_void |= np.isnan(distances).any(axis=1)
        distances[is_void] = self.start_y
        units = np.array([t.units for t in trials])
        return Evidence(
            units=units.reshape(len(trials), len(self.encoder.parameters)),
            costs=np.array([self._cost_here_s(trial) for trial in trials]),
            distances=distances,
            variances=np.where(is_void, 0.0, scales**2),
            ranks=np.array(list(map(self._rank, outcomes, distances.max(axis=1)))),
            fits=np.array([o.status != Status.OOM or not memory for o in outcomes], dtype=bool),
        )


def _spent_s(trial: Trial) -> float:
    assert trial.outcome is not None
    return trial.outcome.train_s if trial.met else trial.outcome.curve.end_s


def _rank_of_time(time_s: float) -> float:
    return 100.0 - math.log(max(time_s, 1e-9))

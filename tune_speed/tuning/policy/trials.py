"""Trials of a policy, from the proposal on, and what those that ended say of configurations."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tune_speed.core.records import ENDS, Recommended, Status
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.base import Cost, Outcome, Proposal
from tune_speed.tuning.policy.curve import FloatArray, distance
from tune_speed.tuning.policy.encoding import Encoder

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
    step: int = 0
    """Of the last report."""
    rung: int = 0
    again: bool = False
    """Whether its configuration was proposed before."""
    is_foreign: bool = False
    """Whether its clock was another one."""
    outcome: Outcome | None = None
    row: tuple[float | None, FloatArray] | None = None
    """Its row of the table, and the end of the axis for which that was computed."""

    @property
    def ended(self) -> Outcome:
        assert self.outcome is not None
        return self.outcome

    @property
    def met(self) -> bool:
        return self.outcome is not None and self.outcome.status == Status.REACHED

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
        outcome = self.ended
        is_whole = outcome.status in WHOLE
        return outcome.curve.end_s if is_whole else outcome.planned_s or self._guess_s

    def spent_s(self) -> float:
        """Returns what it took, to the target if it met that [s]."""
        outcome = self.ended
        return outcome.train_s if outcome.status == Status.REACHED else outcome.curve.end_s


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
        met = [trial for trial in self.runs if trial.met]
        best = min(met, key=lambda trial: (trial.spent_s(), -trial.ended.curve.metric[-1]))
        return best.proposal.trial_id

    @property
    def final(self) -> float:
        """Mean metric at the ends of its runs."""
        ends = [trial.ended.curve.metric[-1:] for trial in self.runs]
        return float(np.nanmean(np.concatenate(ends)))

    def recommended(self, trial_id: str, **figures: Any) -> Recommended:
        return Recommended(trial_id=trial_id, runs=len(self.runs), hits=self.hits, **figures)

    @property
    def cautious_s(self) -> float:
        """Expected time [s] if its runs were lucky."""
        return self.expected_s * (1 + LUCK / len(self.runs))

    @property
    def hopeful_s(self) -> float:
        """Expected time [s] if they were not."""
        return self.expected_s * (1 - LUCK / math.sqrt(len(self.runs)))


class Ended:
    """Trials that ended but did not fail; of very many, those that say most."""

    def __init__(self, encoder: Encoder, target: base.SearchTarget, most: int) -> None:
        self._encoder, self._target, self._most = encoder, target, most
        self.level = target.value
        """Metric from which distances are measured: the target, or where the best metric is sought
        the best so far, about which the scale is finest."""
        self.num = 0
        """All that ever were, trials of other studies included."""
        self.spent_s = 0.0
        """What the study's own took, on their training clocks."""
        self.longest_s = -math.inf
        """The longest run's likely cost."""
        self._by_number: dict[int, Trial] = {}
        self._sorted: list[Trial] | None = None
        self._configurations: dict[base.ParamsKey, list[Trial]] | None = None
        self._known: list[Known] | None = None

    def add(self, trial: Trial) -> None:
        self._by_number[trial.number] = trial
        self.num += 1
        self.spent_s += trial.ended.curve.end_s if trial.number >= 0 else 0.0
        self.longest_s = max(self.longest_s, trial.cost.likely_s if trial.cost else -math.inf)
        self._sorted = self._configurations = self._known = None
        self._raise_level(trial.ended)
        if len(self._by_number) >= 2 * self._most:
            self._thin_out({trial.number})

    @property
    def trials(self) -> list[Trial]:
        """By their numbers."""
        if self._sorted is None:
            self._sorted = [trial for _, trial in sorted(self._by_number.items())]
        return self._sorted

    def of_id(self, trial_id: str) -> Trial:
        return next(trial for trial in self.trials if trial.proposal.trial_id == trial_id)

    def known(self) -> list[Known]:
        """Returns what the runs of each configuration say that met the target, without a model."""
        if self._known is None:  # Each report of a trial asks for the time to beat.
            self._known = [
                Known(runs, hits, sum(map(Trial.spent_s, runs)) / hits)
                for runs in self.configurations().values()
                if (hits := sum(trial.met for trial in runs))
            ]
        return self._known

    def configurations(self) -> dict[base.ParamsKey, list[Trial]]:
        """Returns the study's runs to their ends, by configuration."""
        if self._configurations is None:
            self._configurations = self._by_params(filter(self._is_run, self.trials))
        return self._configurations

    def runs_of(self, params: Mapping[str, Any]) -> list[Trial]:
        return self.configurations()[self._encoder.key(params)]

    def _by_params(self, trials: Iterable[Trial]) -> dict[base.ParamsKey, list[Trial]]:
        found: dict[base.ParamsKey, list[Trial]] = {}
        for trial in trials:
            found.setdefault(self._encoder.key(trial.proposal.params), []).append(trial)
        return found

    def _is_run(self, trial: Trial) -> bool:
        outcome, is_free = trial.ended, self._target.mode == "anytime"
        # Where the length is free, one that was run again and stopped counts: it took too long.
        is_late = outcome.status == Status.CAPPED and trial.again and is_free
        return trial.number >= 0 and (outcome.status in ENDS or (is_late and not outcome.by_hand))

    def _raise_level(self, outcome: Outcome) -> None:
        if not self._target.best or outcome.status != Status.REACHED:
            return
        if (end := float(outcome.curve.metric[-1])) > self.level:
            self.level = end
            for trial in self._by_number.values():
                trial.row = None

    def _thin_out(self, kept: set[int]) -> None:
        """Forgets half of the trials but `kept`; of a configuration all runs stay, or none.

        Half of what stays is the best, a quarter the newest, and a quarter of every quality.
        """
        own = self._by_params(self.trials)
        best = sorted(own.values(), key=self._promise, reverse=True)
        newest = [own[self._encoder.key(trial.proposal.params)] for trial in self.trials[::-1]]
        quarter = max(self._most // 4, 1)
        evenly = best[:: max(len(best) // quarter, 1)]
        for limit, runs in ((2 * quarter, best), (3 * quarter, newest), (4 * quarter, evenly)):
            for each in runs:
                if len(kept) < limit:
                    kept.update(trial.number for trial in each)
        self._by_number = {number: self._by_number[number] for number in kept}
        self._sorted = None

    def _promise(self, runs: Sequence[Trial]) -> float:
        ends = [trial for trial in runs if self._is_run(trial)]
        hits = sum(trial.met for trial in ends)
        if hits and not self._target.best:
            return _rank_of_time(sum(map(Trial.spent_s, ends)) / hits * (1 + 1 / len(ends)))
        outcomes = [trial.ended for trial in runs]
        best = [-math.inf if o.best_metric is None else o.best_metric for o in outcomes]
        return max(map(self.rank, outcomes, distance(best, self.level)))

    def rank(self, outcome: Outcome, best_y: float) -> float:
        """Returns how good a trial is to search around; those that reached come first, by time."""
        if outcome.status == Status.OOM:
            return -math.inf
        if outcome.status == Status.REACHED and not self._target.best:
            return _rank_of_time(outcome.train_s)
        return min(best_y, 0.0)


def _rank_of_time(time_s: float) -> float:
    return 100.0 - math.log(max(time_s, 1e-9))

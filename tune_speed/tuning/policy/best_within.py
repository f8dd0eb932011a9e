"""The policy for the best metric within a training time: the other face of time to target.

The limit T takes the place of the target: a run counts if its length, known beforehand, fits into
it. What is sought is the configuration with the best mean of the metric at the end, so gains are
those of the mean's best (`expected_time.gain_of_metric`), over c^κ with the cost c as ever, and
distances are measured from the best end so far, where differences count (`History.level`).

The best lengths lie near T, since longer runs end better more often than not. They are found by the
model, to which a run's cost is an input: candidates that were made as long as T allows gained
nothing (see tests/benchmarks).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tune_speed.core.records import Recommended
from tune_speed.tuning.policy.acquisition import Candidate, Model, Objective
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.curve_table import metric_at
from tune_speed.tuning.policy.history import Known, Trial
from tune_speed.tuning.policy.time_to_target import NUM_FAVOURITES, TimeToTarget

ROOM = 0.95
"""Share of the limit that a run may be likely to take."""


class BestWithin(TimeToTarget):
    """Proposes, stops and learns from trials, as `TimeToTarget` does, for the best end in time."""

    _best_y: float | None = None
    """Distance that the best configuration's runs end at, by the model."""

    def _by_the_model(self, model: Model, known: Sequence[Known]) -> tuple[Recommended, ...]:
        del known
        runs = [own for own in self._history.configurations().values() if any(t.met for t in own)]
        _, mean, sd, costs = self._log_expected(model, runs)
        # Times are told anew at the end of a search, and differ by some percent where certified: of
        # ten runs of a recipe at 1.04 of the limit three were in time.
        is_close = np.array([_mean_s(own) >= self._longest_s for own in runs])
        order = np.lexsort((-mean, is_close))
        self._tried = [
            Candidate(runs[i][0].units, runs[i][0].proposal.params, float(costs[i]))
            for i in order[:16]
        ]
        self._best_y = float(mean[order[0]])
        level = self._history.level
        return tuple(
            _recommended(runs[i], [metric_at(mean[i] + z * sd[i], level) for z in (0, -1.96, 1.96)])
            for i in order[:NUM_FAVOURITES]
        )

    def _allowed(self, params: Mapping[str, Any]) -> float | None:
        """Returns the likely cost [s]; None too if it is too long, once any run was in time."""
        likely_s = super()._allowed(params)
        if likely_s is None or self.leader is None:
            return likely_s
        return None if likely_s >= self._longest_s else likely_s

    @property
    def _longest_s(self) -> float:
        return ROOM * self._history.target.max_train_s

    def _objective(self, *, only_again: bool, is_end: bool) -> Objective:
        objective = super()._objective(only_again=only_again, is_end=is_end)
        return objective._replace(best_y=self._best_y if self.leader else None)


def _mean_s(runs: Sequence[Trial]) -> float:
    """Returns what the runs that ended in time took, in the mean [s]."""
    times = [trial.outcome.train_s for trial in runs if trial.met and trial.outcome is not None]
    return sum(times) / len(times)


def _recommended(runs: Sequence[Trial], metric: Sequence[FloatArray]) -> Recommended:
    in_time = [(trial, trial.outcome) for trial in runs if trial.met and trial.outcome is not None]
    best = max(in_time, key=lambda each: float(each[1].curve.metric[-1]))[0]
    return Recommended(
        trial_id=best.proposal.trial_id,
        runs=len(runs),
        hits=len(in_time),
        expected_s=_mean_s(runs),
        metric=float(metric[0]),
        metric_low=float(metric[1]),
        metric_high=float(metric[2]),
    )

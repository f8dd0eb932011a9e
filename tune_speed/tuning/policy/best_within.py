"""The policy for the best metric within a training time: the other face of time to target.

The limit takes the place of the target: a run counts if its length, known beforehand, fits into it.
What is sought is the configuration with the best mean of the metric at the end, so gains are those
of the mean's best (`expected_time.gain_of_metric`), and distances are measured from the best end so
far, where differences count (`Ended.level`). Candidates made as long as the limit allows gained
nothing: the model, to which a run's cost is an input, finds them (see tests/benchmarks).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tune_speed.core.records import Recommended
from tune_speed.core.text import Interval
from tune_speed.tuning.policy.acquisition import Model, Objective
from tune_speed.tuning.policy.curve import metric_at
from tune_speed.tuning.policy.learned import NUM_FAVOURITES, Learned
from tune_speed.tuning.policy.time_to_target import TimeToTarget
from tune_speed.tuning.policy.trials import Known

ROOM = 0.95
"""Share of the limit that a run may be likely to take."""


class _Learned(Learned):
    best_y: float | None = None
    """Distance that the best configuration's runs end at, by the model."""

    def _without_a_model(self, known: Sequence[Known]) -> tuple[Recommended, ...]:
        return ()

    @property
    def longest_s(self) -> float:
        return ROOM * self._history.target.max_train_s

    def _by_the_model(self, model: Model, known: Sequence[Known]) -> tuple[Recommended, ...]:
        _, mean, sd, costs = self._log_expected(model, [each.runs for each in known])
        # Times are told anew at the end of a search, and differ by some percent where certified: of
        # ten runs of a recipe at 1.04 of the limit three were in time.
        is_close = np.array([_mean_s(each) >= self.longest_s for each in known])
        order = np.lexsort((-mean, is_close))
        self._keep([known[i].runs[0] for i in order], costs[order])
        self.best_y = float(mean[order[0]])
        level, found = self._history.ended.level, []
        for i in order[:NUM_FAVOURITES]:
            ends = (float(metric_at(mean[i] + z * sd[i], level)) for z in (0, -1.96, 1.96))
            figures = {"metric": Interval(*ends), "expected_s": _mean_s(known[i])}
            met = [trial for trial in known[i].runs if trial.met]
            best = max(met, key=lambda trial: float(trial.ended.curve.metric[-1]))
            found.append(known[i].recommended(best.proposal.trial_id, **figures))
        return tuple(found)


class BestWithin(TimeToTarget):
    """Proposes, stops and learns from trials, as `TimeToTarget` does, for the best end in time."""

    _learned_by = _Learned
    _learned: _Learned

    def _allowed(self, params: Mapping[str, Any]) -> float | None:
        """Returns the likely cost [s]; None too if it is too long, once any run was in time."""
        likely_s = super()._allowed(params)
        if likely_s is None or self.leader is None:
            return likely_s
        return None if likely_s >= self._learned.longest_s else likely_s

    def _objective(self, *, is_spread: bool) -> Objective:
        # What fits into the time is the better the longer it is.
        objective = super()._objective(is_spread=False)
        return objective._replace(best_y=self._learned.best_y if self.leader else None)


def _mean_s(known: Known) -> float:
    return sum(trial.ended.train_s for trial in known.runs if trial.met) / known.hits

"""Trainings on one device or two, of which the truth is known: two are 1.5 times as fast."""

from collections.abc import Mapping
from typing import Any

from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.cost_clock import Rates
from tune_speed.tuning.policy.curve import Curve, Mode
from tune_speed.tuning.simulation.noisy import Noisy
from tune_speed.tuning.simulation.synthetic import Synthetic

SPEEDUP = 1.5
PRICE = 3.6
"""Of an hour of one device: a second costs 0.001."""


class SeveralDevices:
    """A benchmark whose recipes train on one device or two. With `by_cost`, money is sought."""

    def __init__(self, base: Noisy | Synthetic, *, by_cost: bool) -> None:
        self.base, self.name = base, f"{base.name}-devices"
        tree = {**base.space.tree, "devices": {"choices": [1, 2]}}
        self.space, self.target = SearchSpace.from_tree(tree), base.target
        self.mode: Mode = base.mode
        self.full_run_s = base.full_run_s
        self.rates = Rates(self.space, PRICE) if by_cost else None

    def curve(self, params: Mapping[str, Any]) -> Curve:
        """Returns a run of a configuration, in seconds."""
        run = self.base.curve(_alone(params))
        return Curve(run.train_s / _speed(params), run.metric)

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        """Returns the seconds to the curve's end."""
        return self.base.predicted_cost(_alone(params)) / _speed(params)


def _alone(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != "devices"}


def _speed(params: Mapping[str, Any]) -> float:
    return SPEEDUP if params["devices"] == 2 else 1.0

"""Trainings on one device or two, or on two types of device, of which the truth is known."""

from collections.abc import Mapping
from typing import Any

from tune_speed.study.space import DEVICE_TYPE, SearchSpace, space_of
from tune_speed.tuning.policy.cost_clock import Rates
from tune_speed.tuning.policy.curve import Curve, Mode
from tune_speed.tuning.simulation.noisy import Noisy
from tune_speed.tuning.simulation.synthetic import Synthetic

SPEEDUP = 1.5
"""Of two devices against one."""
PRICE = 3.6
"""Of an hour of one device: a second costs 0.001."""
TYPE_SPEEDS = {"new": 3.0, "old": 1.0}
"""How many times as fast as `old` a type of device is."""
OLD_IS_CHEAP = {"new": 3.6, "old": 0.72}
"""Prices at which a training on `new` costs 5 / 3 times as much."""
NEW_IS_CHEAP = {"new": 3.6, "old": 2.0}
"""Prices at which it costs 0.6 times as much."""


class _OnDevices:
    """A benchmark whose recipes train at a speed and a price that one more parameter decides."""

    name: str
    space: SearchSpace
    rates: Rates | None
    """None: time is sought, else money."""
    parameter: str

    def __init__(self, base: Noisy | Synthetic) -> None:
        self.base, self.target = base, base.target
        self.mode: Mode = base.mode
        self.full_run_s = base.full_run_s

    def speed(self, params: Mapping[str, Any]) -> float:
        """Returns how many times as fast as the base a configuration is."""
        raise NotImplementedError

    def price_per_s(self, params: Mapping[str, Any]) -> float:
        """Returns what a second of a configuration costs."""
        raise NotImplementedError

    def alone(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the base knows of a configuration."""
        return {name: value for name, value in params.items() if name != self.parameter}

    def curve(self, params: Mapping[str, Any]) -> Curve:
        """Returns a run of a configuration, in seconds."""
        run = self.base.curve(self.alone(params))
        return Curve(run.train_s / self.speed(params), run.metric)

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        """Returns the seconds to the curve's end."""
        return self.base.predicted_cost(self.alone(params)) / self.speed(params)


class SeveralDevices(_OnDevices):
    """On one device or two. With `by_cost`, money is sought."""

    parameter = "devices"

    def __init__(self, base: Noisy | Synthetic, *, by_cost: bool) -> None:
        super().__init__(base)
        self.name = f"{base.name}-devices"
        tree = {**base.space.tree, "devices": {"choices": [1, 2]}}
        self.space = SearchSpace.from_tree(tree)
        self.rates = Rates(self.space, PRICE) if by_cost else None

    def speed(self, params: Mapping[str, Any]) -> float:
        return SPEEDUP if params["devices"] == 2 else 1.0

    def price_per_s(self, params: Mapping[str, Any]) -> float:
        return float(params["devices"]) * PRICE / 3600


class SeveralTypes(_OnDevices):
    """On one of two types of device, at prices by type. With `by_cost`, money is sought."""

    parameter = DEVICE_TYPE

    def __init__(
        self, base: Noisy | Synthetic, *, by_cost: bool, prices: Mapping[str, float] = OLD_IS_CHEAP
    ) -> None:
        super().__init__(base)
        self.name, self.prices = f"{base.name}-types", prices
        resources = {"device_types": list(TYPE_SPEEDS)}
        study = {"recipe": base.space.tree, "search": {"resources": resources}}
        self.space = space_of(study)
        self.rates = Rates(self.space, prices) if by_cost else None

    def speed(self, params: Mapping[str, Any]) -> float:
        return TYPE_SPEEDS[params[DEVICE_TYPE]]

    def price_per_s(self, params: Mapping[str, Any]) -> float:
        return self.prices[params[DEVICE_TYPE]] / 3600

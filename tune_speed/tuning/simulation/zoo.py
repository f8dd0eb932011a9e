"""Synthetic trainings of ten networks in one space: which of them gets there soonest?

Network k is the benchmark `base` (see `synthetic`) with figures of its own, drawn by the seed:

    accuracy = base accuracy at lr · 2^(−r_k), less d_k;    seconds = c_k · base seconds
    c_k = 2^−2 … 2^2 evenly spread,  d_k ~ U(0, 0.08),  r_k ~ U(−2, 2)

So the surface over rates and schedules is one for all, but shifted. The target is the quantile of
the final accuracy over all ten that leaves the wanted share: about half of the networks cannot
meet it at any length.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.curve import Curve, Mode
from tune_speed.tuning.simulation.synthetic import Synthetic, draws

NUM_NETWORKS = 10
MODEL = "model"


class _Network(NamedTuple):
    cost: float
    """Factor of the seconds of an epoch."""
    shortfall: float
    """Of the final accuracy."""
    rate_shift: float
    """log2 of the factor of the best rate."""


@dataclass(frozen=True)
class Zoo:
    """A synthetic zoo, or one of its networks."""

    feasible_share: float
    """Share of random configurations, over all networks, that meet the target."""
    seed: int = 0
    """Where the optimum lies, and what the networks are."""
    only: str | None = None
    """The network that a search of its own has; None: the choice of network is searched."""
    mode: Mode = "fixed_length"

    @property
    def name(self) -> str:
        """Says mode, seed and network, such as `zoo-fixed_length-2-n7`."""
        parts = ["zoo", self.mode, str(self.seed) if self.seed else None, self.only]
        return "-".join(part for part in parts if part)

    @property
    def base(self) -> Synthetic:
        """What its networks are variants of."""
        return Synthetic(1.0, self.mode, self.seed)

    @functools.cached_property
    def networks(self) -> dict[str, _Network]:
        """All networks by name."""
        rng = np.random.default_rng([self.seed, NUM_NETWORKS])
        costs = 2.0 ** rng.permutation(np.linspace(-2.0, 2.0, NUM_NETWORKS))
        falls = rng.uniform(0.0, 0.08, NUM_NETWORKS)
        shifts = rng.uniform(-2.0, 2.0, NUM_NETWORKS)
        found = map(_Network, costs.tolist(), falls.tolist(), shifts.tolist())
        return {f"n{number}": network for number, network in enumerate(found)}

    @functools.cached_property
    def space(self) -> SearchSpace:
        """The choice of network, and the space of the base."""
        model = {"choices": list(self.networks)} if self.only is None else self.only
        return SearchSpace.from_tree({MODEL: model, **self.base.tree})

    @functools.cached_property
    def target(self) -> float:
        """Accuracy that counts as reached, the same for each network alone."""
        names = np.random.default_rng(self.seed).choice(list(self.networks), size=len(self._draws))
        curves = [self.curve({**p, MODEL: n}) for p, n in zip(self._draws, names, strict=True)]
        finals = [float(c.metric[-1]) if len(c.metric) else 0.0 for c in curves]
        return float(np.quantile(np.nan_to_num(finals), 1 - self.feasible_share))

    @functools.cached_property
    def full_run_s(self) -> float:
        """Seconds of the longest run of a network of mean cost: c = 1."""
        return self.base.full_run_s

    @property
    def _draws(self) -> list[dict[str, Any]]:
        return draws(self.mode, self.seed)

    def curve(self, params: Mapping[str, Any]) -> Curve:
        """Returns the run of a configuration; no evaluations where memory runs out."""
        network = self._network(params)
        curve = self.base.curve(self._of_base(params, network))
        metric = np.clip(curve.metric - network.shortfall, 0.0, 1.0)
        return Curve(curve.train_s * network.cost, metric)

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        """Returns the seconds to the curve's end."""
        network = self._network(params)
        return network.cost * self.base.predicted_cost(self._of_base(params, network))

    def _network(self, params: Mapping[str, Any]) -> _Network:
        return self.networks[params.get(MODEL, self.only)]

    @staticmethod
    def _of_base(params: Mapping[str, Any], network: _Network) -> dict[str, Any]:
        lr = f"optimizer.{params['optimizer']}.lr"
        shifted = params[lr] / 2**network.rate_shift
        return {n: v for n, v in params.items() if n != MODEL} | {lr: shifted}

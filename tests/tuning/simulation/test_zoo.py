"""A synthetic zoo: each network is the base with another cost, another end and another rate."""

import numpy as np
import pytest

from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.simulation.benchmarks import find_benchmark
from tune_speed.tuning.simulation.zoo import MODEL, NUM_NETWORKS, Zoo

ZOO = Zoo(0.01, seed=3)


def drawn(zoo: Zoo, num: int) -> list[dict[str, object]]:
    units = np.random.default_rng(1).random((num, len(zoo.space.parameters)))
    return Encoder(zoo.space).params(units)


def test_as_many_configurations_of_all_networks_meet_the_target_as_was_said() -> None:
    curves = [ZOO.curve(params) for params in drawn(ZOO, 4000)]
    met = [len(c.metric) > 0 and float(c.metric[-1]) >= ZOO.target for c in curves]
    # Four standard deviations of a share of 1 % among 4,000, here and in the zoo's own draws.
    assert np.mean(met) == pytest.approx(0.01, abs=4 * (2 * 0.01 * 0.99 / 4000) ** 0.5)


def test_a_network_is_the_base_at_a_shifted_rate_with_its_own_end_and_cost() -> None:
    params = next(p for p in drawn(ZOO, 50) if p["optimizer"] == "sgd" and p["batch_size"] == 64)
    network = ZOO.networks[str(params[MODEL])]
    rest = {name: value for name, value in params.items() if name != MODEL}
    rest["optimizer.sgd.lr"] = float(str(rest["optimizer.sgd.lr"])) / 2**network.rate_shift
    base, own = ZOO.base.curve(rest), ZOO.curve(params)
    assert own.train_s == pytest.approx(base.train_s * network.cost)
    assert own.metric == pytest.approx(np.clip(base.metric - network.shortfall, 0, 1), nan_ok=True)
    assert own.end_s == pytest.approx(ZOO.predicted_cost(params))


def test_a_network_alone_has_the_runs_and_the_target_that_it_has_in_the_zoo() -> None:
    alone = Zoo(0.01, seed=3, only="n4")
    params = drawn(alone, 1)[0]
    assert MODEL not in params
    assert alone.target == ZOO.target
    same = ZOO.curve({**params, MODEL: "n4"}).metric
    assert np.array_equal(alone.curve(params).metric, same, equal_nan=True)


def test_costs_span_a_factor_of_sixteen_and_some_networks_are_hopeless() -> None:
    costs = [network.cost for network in ZOO.networks.values()]
    assert len(costs) == NUM_NETWORKS
    assert max(costs) / min(costs) == pytest.approx(16)
    # The base ends at 0.96 less 0.62 · 65^(−0.8), at most.
    ends = [0.96 - 0.62 * 65**-0.8 - network.shortfall for network in ZOO.networks.values()]
    assert 2 <= sum(end < ZOO.target for end in ends) <= 8


def test_it_is_found_by_name() -> None:
    assert find_benchmark("zoo-fixed_length").name == "zoo-fixed_length"

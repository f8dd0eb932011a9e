import pytest

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status
from tune_speed.experiments.ablation.plan import (
    Order,
    best_factor,
    next_factor,
    tuned_settings,
    value_at,
)
from tune_speed.experiments.ablation.result import TuningPoint
from tune_speed.training.recipe import Recipe

FACTORS = (0.3, 1.0, 3.0)
RECIPE = Recipe(model=ResNet20(), optimizer=Sgd(lr=0.2), epochs=2.5, batch_size=32)


def points(*metrics: float | None, factors: tuple[float, ...] = FACTORS) -> list[TuningPoint]:
    return [
        TuningPoint(
            factor=factor,
            metric=metric,
            status=Status.MISSED if metric is not None else Status.DIVERGED,
        )
        for factor, metric in zip(factors, metrics, strict=True)
    ]


def hit(factor: float, time_s: float, *, metric: float = 0.9, seed: int = 0) -> TuningPoint:
    return TuningPoint(
        factor=factor, metric=metric, status=Status.REACHED, time_to_target_s=time_s, seed=seed
    )


def miss(factor: float, metric: float = 0.89, *, seed: int = 0) -> TuningPoint:
    return TuningPoint(factor=factor, metric=metric, status=Status.MISSED, seed=seed)


@pytest.mark.parametrize("path", ["optimizer.lr", "optimizer.sgd.lr", "recipe.optimizer.lr"])
def test_number_is_found_with_or_without_the_components_name(path: str) -> None:
    assert value_at(RECIPE, path) == 0.2


@pytest.mark.parametrize("path", ["model", "optimizer.sgd", "optimizer.nesterov", "nothing", "lr"])
def test_what_is_no_number_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=f"must name a number .* `{path}` is none .* Try `lr`"):
        value_at(RECIPE, path)


def test_arms_own_value_is_multiplied_and_a_count_stays_one() -> None:
    with pytest.raises(ConfigError):
        tuned_settings(RECIPE, "optimizer.typo", 1.0)
    for name in ("lr", "optimizer.lr"):
        assert tuned_settings(RECIPE, name, 0.3) == {"optimizer.lr": 0.06}
    assert tuned_settings(RECIPE, "optimizer.lr", 1.0) == {}
    assert tuned_settings(RECIPE, "epochs", 3.0) == {"epochs": 7.5}
    fewer = tuned_settings(RECIPE, "batch_size", 0.3)
    assert fewer == {"batch_size": 10} and isinstance(fewer["batch_size"], int)
    assert tuned_settings(RECIPE, "accumulation_steps", 0.3) == {"accumulation_steps": 1}


SOONER = [hit(0.3, 9.0, metric=0.95), hit(1.0, 5.0), hit(3.0, 4.0)]
BEST = [
    (points(0.7, 0.8, 0.9), False, 3.0),
    (points(0.9, 0.8, 0.7), False, 0.3),
    (points(0.8, 0.8, 0.8), False, 1.0),
    # A tie: ln 3 is less than -ln 0.3.
    (points(0.8, 0.7, 0.8), False, 3.0),
    # A diverged run counts lowest, even beside a good one.
    (points(0.1, 0.0, None), False, 0.3),
    (points(None, None, None), False, 1.0),
    ([*points(0.1, 0.2, 0.99), *points(0.1, 0.2, None)], False, 1.0),
    # The mean over seeds decides.
    ([*points(0.5, 0.6, 0.9), *points(0.5, 0.6, 0.2)], False, 1.0),
    # Where runs end at the target sooner is better, a miss is later than any hit, more hits come
    # first, and the metric decides where nobody met it.
    (SOONER, False, 0.3),
    (SOONER, True, 3.0),
    ([hit(0.3, 99.0), miss(1.0, 0.99), miss(3.0, 0.5)], True, 0.3),
    ([hit(1.0, 5.0), hit(1.0, 6.0, seed=1), hit(3.0, 1.0), miss(3.0, seed=1)], True, 1.0),
    ([miss(0.3, 0.5), miss(1.0, 0.4), miss(3.0, 0.6)], True, 3.0),
]


@pytest.mark.parametrize(("runs", "by_time", "best"), BEST)
def test_best_factor(runs: list[TuningPoint], by_time: bool, best: float) -> None:
    assert best_factor(runs, Order(by_time=by_time)) == best


def test_edge_goes_on_beyond_the_same_step() -> None:
    assert next_factor(FACTORS, points(0.7, 0.8, 0.9)) == 9.0
    assert next_factor(FACTORS, points(0.9, 0.8, 0.7)) == 0.09
    assert next_factor(FACTORS, points(0.7, 0.8, 0.7)) is None
    soonest_last = [hit(0.3, 3.0, metric=0.95), hit(1.0, 2.0), hit(3.0, 1.0)]
    assert next_factor(FACTORS, soonest_last, Order(by_time=True)) == 9.0


def test_edge_that_turned_out_worse_ends_it() -> None:
    tried = points(0.7, 0.8, 0.9, 0.6, factors=(*FACTORS, 9.0))
    assert next_factor(FACTORS, tried) is None


def test_at_most_two_factors_are_added() -> None:
    three = points(0.7, 0.8, 0.9, 0.91, factors=(*FACTORS, 9.0))
    assert next_factor(FACTORS, three) == 27.0
    both = points(0.7, 0.8, 0.9, 0.91, 0.92, factors=(*FACTORS, 9.0, 27.0))
    assert next_factor(FACTORS, both) is None

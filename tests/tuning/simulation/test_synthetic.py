import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tune_speed.tuning.policy.curve import Curve, Mode, crossing
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.simulation import synthetic
from tune_speed.tuning.simulation.synthetic import NOISE, Synthetic

MODES: tuple[Mode, ...] = ("fixed_length", "anytime")
BENCHMARKS = [Synthetic(share, mode) for mode in MODES for share in (0.15, 0.04, 0.01)]
every_benchmark = pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda b: b.name)
every_mode = pytest.mark.parametrize("mode", MODES)


def draw(benchmark: Synthetic, num: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Returns configurations that are not those of which the target is a quantile."""
    units = np.random.default_rng(seed).random((num, len(benchmark.space.parameters)))
    return Encoder(benchmark.space).params(units)


@functools.cache
def drawn_curves(mode: Mode) -> list[Curve]:
    benchmark = Synthetic(0.5, mode)
    return [benchmark.curve(params) for params in draw(benchmark, 8000)]


def time_of(benchmark: Synthetic, curve: Curve) -> float:
    hit = crossing(curve, target=benchmark.target, mode=benchmark.mode)
    return math.inf if hit is None else float(curve.train_s[hit])


def epochs_to(accuracy: float) -> float:
    """Returns the epochs that the optimum needs: 0.62 · (n + 1)^−0.8 = 0.96 − accuracy."""
    return float((0.62 / (0.96 - accuracy)) ** 1.25 - 1)


def seconds_per_epoch(benchmark: Synthetic) -> float:
    """Returns those of the largest batch that has a curve."""
    batches = {p["batch_size"] for p in draw(benchmark, 200) if len(benchmark.curve(p).metric)}
    return 0.6 + 1.4 * (128 / max(batches)) ** 0.7


def at_optimum(benchmark: Synthetic, params: dict[str, Any], epochs: float) -> dict[str, Any]:
    lacks, best = benchmark._setting(params), dict(params)
    best[f"optimizer.{params['optimizer']}.lr"] /= 2**lacks.rate_error
    best[f"optimizer.{params['optimizer']}.weight_decay"] /= 10**lacks.decay_error
    best["lr_schedule.one_cycle.pct_start"] -= lacks.pct_error
    best["lr_schedule.one_cycle.final_div_factor"] /= 10**lacks.final_error
    return best | ({"epochs": epochs} if "epochs" in best else {})


@every_benchmark
def test_stated_share_of_fresh_configurations_meets_the_target(benchmark: Synthetic) -> None:
    share, curves = benchmark.feasible_share, drawn_curves(benchmark.mode)
    met = np.mean([math.isfinite(time_of(benchmark, curve)) for curve in curves])
    # The target is itself a quantile of 4,000 draws.
    sd = math.sqrt(share * (1 - share) * (1 / len(curves) + 1 / 4000))
    assert abs(met - share) < 4 * sd


@every_benchmark
def test_curve_is_that_of_the_family_whatever_share_is_to_meet_the_target(
    benchmark: Synthetic,
) -> None:
    for params, drawn in zip(draw(benchmark, 20), drawn_curves(benchmark.mode), strict=False):
        assert_same(benchmark.curve(params), drawn)


def assert_same(first: Curve, second: Curve) -> None:
    np.testing.assert_array_equal(first.train_s, second.train_s)
    np.testing.assert_array_equal(first.metric, second.metric)


@every_mode
@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_same_params_have_the_same_curve_whoever_asks(mode: Mode, seed: int) -> None:
    (params,) = draw(Synthetic(0.04, mode), 1, seed=seed)
    backwards = dict(reversed(params.items()))
    first, second = Synthetic(0.04, mode).curve(params), Synthetic(0.01, mode).curve(backwards)
    assert_same(first, second)


@every_mode
def test_cost_is_the_end_of_the_curve_and_no_longer_than_a_full_run(mode: Mode) -> None:
    benchmark = Synthetic(0.04, mode)
    for params in draw(benchmark, 300):
        curve = benchmark.curve(params)
        if len(curve.metric):
            assert benchmark.predicted_cost(params) == pytest.approx(curve.end_s)
            assert curve.end_s <= benchmark.full_run_s * 1.02


@pytest.mark.parametrize("seed", range(6))
def test_memory_is_a_wall_in_batch_size_alone(seed: int) -> None:
    benchmark = Synthetic(0.04, "anytime", seed)
    fits = {True: set(), False: set()}
    for params in draw(benchmark, 200):
        fits[len(benchmark.curve(params).metric) > 0].add(params["batch_size"])
    assert max(fits[True]) < min(fits[False])
    assert max(fits[True]) in (256, 512, 1024)


@every_mode
def test_rates_far_above_the_best_diverge(mode: Mode) -> None:
    benchmark = Synthetic(0.04, mode)
    params = next(
        p for p in draw(benchmark, 99) if p["optimizer"] == "sgd" and p["batch_size"] < 99
    )
    best = at_optimum(benchmark, params, 64.0)
    curve = benchmark.curve(best | {"optimizer.sgd.lr": best["optimizer.sgd.lr"] * 2**4.6})
    assert np.isnan(curve.metric[-1]) and not np.isnan(curve.metric[0])
    assert not np.isnan(benchmark.curve(best).metric).any()


@every_benchmark
def test_best_known_time_is_the_closed_form(benchmark: Synthetic) -> None:
    epochs = max(epochs_to(benchmark.target), 4.0)
    grid = 64 / 48
    rounded = epochs if benchmark.mode == "fixed_length" else math.ceil(epochs / grid) * grid
    expected = rounded * seconds_per_epoch(benchmark)
    assert benchmark.best_known_s == pytest.approx(expected, rel=0.003)


@every_benchmark
def test_random_draws_beat_the_best_known_time_by_no_more_than_noise(benchmark: Synthetic) -> None:
    best_s = min(time_of(benchmark, curve) for curve in drawn_curves(benchmark.mode))
    lucky = max(epochs_to(benchmark.target - 4 * NOISE), 4.0 * (benchmark.mode == "fixed_length"))
    assert best_s >= lucky * seconds_per_epoch(benchmark)
    assert best_s > 0.8 * benchmark.best_known_s


@every_benchmark
def test_optimum_takes_the_best_known_time_but_for_noise(benchmark: Synthetic) -> None:
    epoch_s, times = seconds_per_epoch(benchmark), []
    for params in draw(benchmark, 300):
        if len(benchmark.curve(params).metric) and benchmark._setting(params).epoch_s <= epoch_s:
            best = at_optimum(benchmark, params, 1.02 * benchmark.best_known_s / epoch_s)
            assert benchmark.space.read(best) == best
            times.append(time_of(benchmark, benchmark.curve(best)))
    late_s = epochs_to(benchmark.target + 4 * NOISE) * epoch_s
    assert min(times) <= max(late_s, 1.02 * benchmark.best_known_s)
    assert np.mean(np.array(times) <= max(late_s, 1.02 * benchmark.best_known_s)) > 0.5


def test_names_of_a_suite_differ() -> None:
    others = [Synthetic(0.04, "anytime", seed) for seed in (1, 2)]
    assert len({benchmark.name for benchmark in [*BENCHMARKS, *others]}) == len(BENCHMARKS) + 2


def test_drawing_the_target_is_silent(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic, "DRAWS", 100)
    assert 0.5 < Synthetic(0.04, "anytime", seed=4321).target < 0.96
    assert capfd.readouterr() == ("", "")

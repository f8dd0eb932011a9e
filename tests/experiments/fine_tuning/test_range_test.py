"""The range test: its schedule and smoothing, and what it reads off curves that are made."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training.tiny import CPU, make_recipe, make_splits, make_workload

from tune_speed.experiments.fine_tuning import range_test
from tune_speed.experiments.fine_tuning.range_test import RateCurve, proposed, smoothed
from tune_speed.training.build import Job


def made_curve(steepest: float, diverges: float) -> RateCurve:
    """Returns a fall like a logistic function of log rate, and a rise like one."""
    rates = np.geomspace(1e-5, 0.3, 100)
    fall = 1 / (1 + (rates / steepest) ** 2)
    rise = 3 / (1 + (diverges / rates) ** 4)
    return RateCurve(rates.tolist(), (0.5 + 2 * fall + rise).tolist())


@pytest.mark.parametrize(("steepest", "diverges"), [(1e-3, 0.1), (3e-4, 0.02)])
def test_the_range_is_around_where_the_loss_stops_falling(steepest: float, diverges: float) -> None:
    found = proposed(made_curve(steepest, diverges))
    # A tenth of 1 / (1 + (r / s)²) is left at r = 3 s.
    assert found.start == pytest.approx(range_test.SAFE * 3 * steepest, rel=0.15)
    assert found.low == pytest.approx(found.start / 4, rel=0.05)
    assert found.high == pytest.approx(4 * found.start, rel=0.05)


def test_the_fall_of_a_fresh_head_s_first_losses_is_no_descent_of_a_rate() -> None:
    rates, losses, _ = made_curve(1e-3, 0.1)
    first = [0.9, 0.6, 0.4, 0.4, 0.2, 0.3, 0.1]
    seen = [loss + more for loss, more in zip(losses, first + [0.0] * 93, strict=True)]
    assert proposed(RateCurve(rates, seen)).start == pytest.approx(range_test.SAFE * 3e-3, rel=0.15)


def test_the_range_stays_below_divergence() -> None:
    found = proposed(made_curve(1e-3, 2e-3))
    rates, losses = made_curve(1e-3, 2e-3)[:2]
    least = min(losses)
    risen = next(r for r, v in zip(rates, losses, strict=True) if r > 1e-3 and v > least + 0.2)
    assert found.low < found.start < found.high < risen


def test_of_a_loss_that_never_falls_the_usual_range_is_proposed() -> None:
    rates = np.geomspace(1e-5, 0.3, 50).tolist()
    assert proposed(RateCurve(rates, np.linspace(1, 2, 50).tolist())) is range_test.USUAL


def test_means_are_the_weighted_means_of_all_before() -> None:
    losses = [3.0, 1.0, 2.0, 5.0]
    weights = 0.9 ** np.arange(4)[::-1]
    expected = [np.average(losses[: k + 1], weights=weights[-k - 1 :]) for k in range(4)]
    assert smoothed(losses) == pytest.approx(expected)


def job(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> tuple[Job, list[float]]:
    """Returns a job, and the rates that its steps are set to."""
    seen: list[float] = []
    set_rates = range_test.set_rates

    def watched(optimizer: Any, factors: Any) -> None:
        set_rates(optimizer, factors)
        seen.append(optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(range_test, "set_rates", watched)
    recipe = make_recipe(optimizer={"adamw": {"lr": range_test.HIGHEST}}, batch_size=5, **fields)
    return Job(make_workload(), recipe, make_splits(), 0, CPU), seen


def test_rates_rise_by_the_same_factor_from_step_to_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = job(monkeypatch)
    tested = range_test.range_test(made)
    assert seen[:4] == pytest.approx([range_test.LOWEST] * 4)
    steps = np.array(seen[4:])
    assert steps[1:] / steps[:-1] == pytest.approx((0.3 / 1e-5) ** (1 / 99))
    assert list(tested.rates) == pytest.approx(seen[4 : 4 + len(tested.rates)])
    assert len(tested.losses) == len(tested.rates) and tested.step_s > 0


def test_it_ends_where_the_loss_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_test, "DIVERGED", 1.0001)
    made, seen = job(monkeypatch)
    assert len(range_test.range_test(made).rates) < len(seen[4:]) <= 100


def test_the_picture_is_a_file(tmp_path: Path) -> None:
    tested = made_curve(1e-3, 0.1)
    range_test.draw(tested, proposed(tested), tmp_path / "range.svg")
    text = (tmp_path / "range.svg").read_text()
    assert text.count("<svg") == 1 and "script" not in text

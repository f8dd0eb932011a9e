"""The choice of the micro-batch: by given times, and by measurement."""

import math

import pytest
import torch
from test_micro_batch import Slow
from training import CPU, Tiny, make_recipe, make_splits

from tune_speed.training.autotune import micro_batch
from tune_speed.training.autotune.micro_batch import probed, resolved, smallest_near_best
from tune_speed.training.recipe import Recipe


def times_of(*, most: int, fits: int, fixed: float = 0.0) -> tuple[dict[int, float], list[int]]:
    """Returns what is found, and the sizes asked for; a batch costs `fixed` beside its samples."""
    asked: list[int] = []

    def probe(size: int) -> float | None:
        asked.append(size)
        return 1 + fixed / size if size <= fits else None

    return probed(probe, most=most), asked


def test_sizes_double_while_throughput_rises() -> None:
    times, asked = times_of(most=300, fits=10**6, fixed=1000.0)
    assert asked == [16, 32, 64, 128, 256, 300]
    assert smallest_near_best(times) == 300


def test_doubling_ends_where_throughput_does_not_rise_any_more() -> None:
    times, asked = times_of(most=10**6, fits=10**6, fixed=4.0)
    assert asked == [16, 32, 64, 128, 256, 512]
    assert smallest_near_best(times) == 128  # 1 + 4/128 = 1.031 is below 1.03 · (1 + 4/512)


@pytest.mark.parametrize("fits", [16, 100, 127, 128, 900])
def test_largest_that_fits_is_found_to_an_eighth(fits: int) -> None:
    times, asked = times_of(most=10**6, fits=fits, fixed=1e6)
    assert fits * 8 / 9 - 1 <= smallest_near_best(times) <= fits
    assert len(asked) <= 12


@pytest.mark.parametrize("fits", [1, 3, 9])
def test_less_than_sixteen_is_tried_where_sixteen_does_not_fit(fits: int) -> None:
    times, _ = times_of(most=1000, fits=fits, fixed=1e6)
    assert max(times) == fits


def test_nothing_fits() -> None:
    assert times_of(most=1000, fits=0)[0] == {}


def test_training_part_is_the_largest_batch() -> None:
    assert times_of(most=5, fits=100)[1] == [5]


def test_smaller_batch_wins_within_three_percent() -> None:
    assert smallest_near_best({16: 1.1, 32: 1.02, 64: 1.0, 128: 1.05}) == 32
    assert smallest_near_best({16: math.inf, 32: 1.0}) == 32


def auto(**changes: object) -> Recipe:
    return make_recipe(**changes).model_copy(update={"batch_size": "auto"})


def test_batch_that_fits_and_is_quick_is_measured() -> None:
    random = torch.get_rng_state()
    recipe = resolved(auto(model=Slow()), make_splits(64), device=CPU)
    assert recipe.batch_size in (32, 64)
    assert torch.equal(random, torch.get_rng_state())


def test_batch_stays_below_what_runs_out_of_memory() -> None:
    recipe = resolved(auto(model=Tiny(most_images=20)), make_splits(64), device=CPU)
    assert isinstance(recipe.batch_size, int)
    assert 1 <= recipe.batch_size <= 20


def test_where_nothing_fits_the_smallest_is_left_to_the_run() -> None:
    recipe = resolved(auto(model=Tiny(most_images=0)), make_splits(64), device=CPU)
    assert recipe.batch_size == 1


def test_accumulation_stays() -> None:
    recipe = resolved(auto(accumulation_steps=3), make_splits(64), device=CPU)
    assert recipe.accumulation_steps == 3


def test_size_that_leaves_a_lone_image_over_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "probed", lambda probe, *, most: {16: 9.0, 24: 1.0, 32: 0.9})
    assert resolved(auto(), make_splits(65), device=CPU).batch_size == 24  # 65 = 2 · 32 + 1


def test_slow_step_is_timed_once_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "PROBE_S", 1e-9)
    recipe = make_recipe(model=Tiny(crash_after=2), batch_size=8)
    assert micro_batch._seconds_in_steps(recipe, make_splits(), CPU) > 0


def test_given_batch_is_not_probed() -> None:
    recipe = make_recipe(batch_size=8)
    assert resolved(recipe, make_splits(), device=CPU) is recipe


def test_error_that_is_not_about_memory_is_passed_on() -> None:
    with pytest.raises(ZeroDivisionError):
        resolved(auto(model=Tiny(crash_after=0)), make_splits(), device=CPU)

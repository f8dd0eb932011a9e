import math

import pytest
import torch
from helpers.training.tiny import CPU, Tiny, make_recipe, make_splits
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tune_speed.training.autotune import micro_batch
from tune_speed.training.autotune.micro_batch import (
    candidates,
    fastest,
    halved,
    probed,
    resolved,
    smallest_near_best,
)
from tune_speed.training.recipe import Recipe


def auto(effective_batch_size: int, **changes: object) -> Recipe:
    return make_recipe(
        batch_size=None,
        accumulation_steps="auto",
        effective_batch_size=effective_batch_size,
        **changes,
    )


def sizes_down(recipe: Recipe) -> list[tuple[int | None, object]]:
    sizes = []
    while (smaller := halved(recipe)) is not None:
        sizes.append((smaller.batch_size, smaller.accumulation_steps))
        recipe = smaller
    return sizes


@pytest.mark.parametrize(
    ("batch_size", "accumulation_steps", "expected"),
    [
        (8, 1, [(4, 2), (2, 4), (1, 8)]),
        (4, 3, [(2, 6), (1, 12)]),
        (15, 1, [(5, 3), (1, 15)]),  # 7 and 6 do not divide 15
        (9, 2, [(3, 6), (1, 18)]),  # 4 does not divide 18
        (5, 2, [(2, 5), (1, 10)]),
        (7, 1, [(1, 7)]),
        (1, 8, []),
    ],
)
def test_micro_batch_is_halved_or_goes_to_the_next_divisor(
    batch_size: int, accumulation_steps: int, expected: list[tuple[int, int]]
) -> None:
    recipe = make_recipe(batch_size=batch_size, accumulation_steps=accumulation_steps)
    assert sizes_down(recipe) == expected


@given(batch_size=st.integers(2, 500), accumulation_steps=st.integers(1, 8))
def test_smaller_micro_batch_is_the_largest_that_divides_and_fits_in_half(
    batch_size: int, accumulation_steps: int
) -> None:
    recipe = make_recipe(batch_size=batch_size, accumulation_steps=accumulation_steps)
    smaller, total = halved(recipe), batch_size * accumulation_steps
    assert smaller is not None and smaller.samples_per_step == total
    assert smaller.batch_size == max(d for d in range(1, batch_size // 2 + 1) if total % d == 0)


@pytest.mark.parametrize(
    ("effective_batch_size", "expected"),
    [
        (512, [8, 16, 32, 64, 128, 256, 512]),
        (96, [3, 6, 12, 24, 48, 96]),
        (6, [3, 6]),
        (7, [7]),
        (1, [1]),
    ],
)
def test_candidates_ascend_to_the_whole(effective_batch_size: int, expected: list[int]) -> None:
    assert candidates(effective_batch_size) == expected


def fake_probes(
    monkeypatch: pytest.MonkeyPatch, times: dict[int, float | None]
) -> list[int | None]:
    probed: list[int | None] = []

    def probe(_: object, recipe: Recipe, splits: object, device: object) -> float | None:
        probed.append(recipe.batch_size)
        return times[recipe.batch_size or 0]

    monkeypatch.setattr(micro_batch, "seconds_or_none", probe)
    return probed


@pytest.mark.parametrize(
    ("times", "chosen", "last_probed"),
    [
        ({4: 4.0, 8: 2.0, 16: 1.0}, 16, 16),
        ({4: 4.0, 8: 1.0, 16: 1.05}, 8, 16),
        ({4: 1.0, 8: 1.2, 16: 0.1}, 16, 16),  # one that is worse may have been disturbed
        ({4: 4.0, 8: None, 16: 1.0}, 4, 8),  # nor once memory ran out
        ({4: None, 8: 1.0, 16: 1.0}, 4, 4),  # none fits: `halved` goes on from the smallest
        ({4: math.inf, 8: 2.0, 16: 1.0}, 16, 16),  # batch norm refuses the smallest
    ],
)
def test_fastest_that_fits_is_chosen(monkeypatch, times, chosen, last_probed):
    monkeypatch.setattr(micro_batch, "SMALLEST_SHARE", 4)
    probed = fake_probes(monkeypatch, times)
    recipe = fastest(auto(16), make_splits(), device=CPU)
    assert (recipe.batch_size, recipe.accumulation_steps) == (chosen, 16 // chosen)
    assert recipe.effective_batch_size is None
    assert probed[-1] == last_probed


def test_larger_sizes_are_not_tried_after_two_that_were_worse(monkeypatch):
    monkeypatch.setattr(micro_batch, "SMALLEST_SHARE", 8)
    probed = fake_probes(monkeypatch, {2: 1.0, 4: 1.2, 8: 1.3, 16: 0.1})
    assert fastest(auto(16), make_splits(), device=CPU).batch_size == 2
    assert probed == [2, 4, 8]


def test_given_micro_batch_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = fake_probes(monkeypatch, {})
    recipe = make_recipe(batch_size=8)
    assert fastest(recipe, make_splits(), device=CPU) is recipe
    assert probed == []


@pytest.mark.slow
def test_probing_finds_a_divisor_that_fits_and_leaves_random_numbers_alone() -> None:
    random = torch.get_rng_state()
    recipe = fastest(auto(64, model=Tiny(most_images=20)), make_splits(64), device=CPU)
    assert recipe.batch_size in {1, 2, 4, 8, 16}
    assert recipe.samples_per_step == 64
    assert torch.equal(random, torch.get_rng_state())


class Slow(Tiny):
    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        return SlowNetwork()


class SlowNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((300, 300)))
        self.classifier = nn.Linear(36, 3)

    def forward(self, images: Tensor) -> Tensor:
        fixed_cost = (self.weight @ self.weight @ self.weight).sum()
        logits: Tensor = self.classifier(images.flatten(1)) + 0 * fixed_cost
        return logits


@pytest.mark.slow
def test_probing_sees_which_micro_batch_is_quicker() -> None:
    recipe = fastest(auto(64, model=Slow()), make_splits(64), device=CPU)
    # Of 1 to 64: each takes as long for a step, and a busy machine may hold up one of them.
    assert recipe.batch_size >= 16


def test_error_that_is_not_about_memory_is_passed_on() -> None:
    with pytest.raises(ZeroDivisionError):
        fastest(auto(16, model=Tiny(crash_after=0)), make_splits(), device=CPU)


def test_micro_batch_that_batch_norm_refuses_is_infinitely_slow() -> None:
    class Pooled(Tiny):
        def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, num_classes))

    probe = {
        size: micro_batch.seconds_or_none(
            micro_batch._seconds_per_sample,
            make_recipe(model=Pooled(), batch_size=size),
            make_splits(),
            CPU,
        )
        for size in (1, 2)
    }
    assert probe[1] == math.inf
    assert probe[2] is not None and 0 < probe[2] < 1


def times_of(*, most: int, fits: int, fixed: float = 0.0) -> tuple[dict[int, float], list[int]]:
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


def auto_of_batch_size(**changes: object) -> Recipe:
    return make_recipe(**changes).model_copy(update={"batch_size": "auto"})


def test_batch_that_fits_and_is_quick_is_measured() -> None:
    random = torch.get_rng_state()
    recipe = resolved(auto_of_batch_size(model=Slow()), make_splits(64), device=CPU)
    assert recipe.batch_size in (32, 64)
    assert torch.equal(random, torch.get_rng_state())


def test_batch_stays_below_what_runs_out_of_memory() -> None:
    recipe = resolved(auto_of_batch_size(model=Tiny(most_images=20)), make_splits(64), device=CPU)
    assert isinstance(recipe.batch_size, int)
    assert 1 <= recipe.batch_size <= 20


def test_where_nothing_fits_the_smallest_is_left_to_the_run() -> None:
    recipe = resolved(auto_of_batch_size(model=Tiny(most_images=0)), make_splits(64), device=CPU)
    assert recipe.batch_size == 1


def test_accumulation_stays() -> None:
    recipe = resolved(auto_of_batch_size(accumulation_steps=3), make_splits(64), device=CPU)
    assert recipe.accumulation_steps == 3


def test_size_that_leaves_a_lone_image_over_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "probed", lambda probe, *, most: {16: 9.0, 24: 1.0, 32: 0.9})
    assert (
        resolved(auto_of_batch_size(), make_splits(65), device=CPU).batch_size == 24
    )  # 65 = 2 · 32 + 1


def test_slow_step_is_timed_once_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "PROBE_S", 1e-9)
    recipe = make_recipe(model=Tiny(crash_after=2), batch_size=8)
    assert micro_batch._seconds_in_steps(recipe, make_splits(), CPU) > 0


def test_given_batch_is_not_probed() -> None:
    recipe = make_recipe(batch_size=8)
    assert resolved(recipe, make_splits(), device=CPU) is recipe


def test_error_that_is_not_about_memory_is_passed_on_of_batch_size() -> None:
    with pytest.raises(ZeroDivisionError):
        resolved(auto_of_batch_size(model=Tiny(crash_after=0)), make_splits(), device=CPU)

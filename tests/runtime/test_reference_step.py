"""The reference step, on a made-up clock and for real."""

import math

import pytest
import torch
from torch.nn import functional

from tune_speed.runtime.reference_step import COLD, LAYERS, SHARE, TIMED, ReferenceStep
from tune_speed.runtime.step_timer import Meters, Steps, time_steps

CPU = torch.device("cpu")


class Ticking:
    """A clock on which a reference step takes `step_s`: from one reading to the next."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def synchronize(self) -> None:
        self.now_s += self.step_s

    def now(self) -> float:
        return self.now_s


def test_it_keeps_to_its_share_of_a_window() -> None:
    clock = Ticking(0.004)
    reference = ReferenceStep(CPU, synchronize=clock.synchronize, now=clock.now)
    reference.begin()
    assert reference.times_s == pytest.approx([0.004] * TIMED)
    others_s = 0.0
    for _ in range(100):
        clock.now_s += 0.01
        others_s += 0.01
        reference.catch_up()
    share = 1 - others_s / clock.now_s
    assert SHARE <= share < SHARE + 0.004 * (COLD + TIMED) / 1.0


def test_it_catches_up_where_it_gets_a_twentieth_of_a_core() -> None:
    """As under a load of 40 on two cores: more of each step is waiting than its share."""
    clock = Ticking(0.004)

    def synchronize() -> None:
        clock.synchronize()
        assert clock.now_s < 10, "it never ends"

    reference = ReferenceStep(
        CPU, synchronize=synchronize, now=clock.now, delayed_s=lambda: 0.95 * clock.now_s
    )
    reference.begin()
    clock.now_s += 1.0
    reference.catch_up()
    assert clock.now_s < 1.5 and reference.times_s[-1] == pytest.approx(0.05 * 0.004)


def test_steps_that_find_the_caches_full_of_a_recipe_are_not_told() -> None:
    clock = Ticking(0.004)
    since = [0]

    def synchronize() -> None:
        clock.now_s += 0.004 * (2.0 if since[0] < COLD else 1.0)
        since[0] += 1

    reference = ReferenceStep(CPU, synchronize=synchronize, now=clock.now)
    since[0] = 0
    reference.begin()
    for _ in range(10):
        clock.now_s, since[0] = clock.now_s + 0.1, 0
        reference.catch_up()
    assert reference.times_s == pytest.approx([0.004] * len(reference.times_s))
    assert len(reference.times_s) > TIMED


def test_a_window_tells_the_mean_of_the_reference_steps_beside_it_and_its_own_without_them() -> (
    None
):
    clock = Ticking(0.004)
    reference = ReferenceStep(CPU, synchronize=clock.synchronize, now=clock.now)

    def take() -> int:
        clock.now_s += 0.02
        return 32

    found = time_steps(
        Steps(take, 32, 10**6, block_s=0.01),
        Meters(synchronize=lambda: None, now=clock.now, reference=reference),
        step_s=0.02,
        limit_s=1.0,
    )
    assert found[:3] == pytest.approx((0.02, 0.02, 0.02))
    assert found.reference_s == pytest.approx(0.004)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_step_on_a_cpu_has_an_image_a_thread(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    seen = list[int]()

    def conv2d(images: torch.Tensor, weight: torch.Tensor, padding: int) -> torch.Tensor:
        seen.append(len(images))
        return torch.conv2d(images, weight, padding=padding)

    monkeypatch.setattr(functional, "conv2d", conv2d)
    ReferenceStep(CPU, synchronize=lambda: None)
    assert seen == [threads] * LAYERS["cpu"]


def test_it_takes_time_and_leaves_random_numbers_and_flags_as_they_were() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state(), torch.backends.cudnn.benchmark, torch.is_grad_enabled()
    with torch.no_grad():
        reference = ReferenceStep(CPU, synchronize=lambda: None)
        reference.begin()
    assert len(reference.times_s) == TIMED and 0 < reference.times_s[0] < 1
    after = torch.get_rng_state(), torch.backends.cudnn.benchmark, torch.is_grad_enabled()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert math.isfinite(reference.times_s[0])

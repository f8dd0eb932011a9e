import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count, cycle, islice

import pytest
import torch
from helpers.training.tiny import CPU, make_recipe, make_splits

from tune_speed.data.loaders.configs import Resident, Streaming
from tune_speed.data.split import Splits
from tune_speed.training.autotune import loader_workers
from tune_speed.training.autotune.loader_workers import (
    Choice,
    Served,
    Setting,
    choose,
    resolved,
    served,
    settings,
)
from tune_speed.training.autotune.micro_batch import Batch
from tune_speed.training.recipe import Recipe

BATCH: Batch = (torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64))


def test_settings_ascend_by_doubling_up_to_the_cores() -> None:
    assert settings(1) == [(0, 2), (1, 2), (1, 4)]
    assert [workers for workers, factor in settings(6) if factor == 2] == [0, 1, 2, 4, 6]


Table = dict[tuple[int, int], tuple[float, float]]


def choice_of(table: Table) -> tuple[Choice, list[Setting]]:
    asked: list[Setting] = []

    def measure(setting: Setting) -> Served:
        asked.append(setting)
        return Served(setting, *table[setting])

    return choose([Setting(*key) for key in table], measure), asked


def test_smallest_setting_that_is_fed_wins_and_ends_the_search() -> None:
    table: Table = {(0, 2): (0.5, 10), (1, 2): (0.2, 16), (1, 4): (0.04, 19), (2, 2): (0.0, 20)}
    choice, asked = choice_of(table)
    assert choice == ((1, 4), False)
    assert asked == [(0, 2), (1, 2), (1, 4)]


def test_five_percent_of_waiting_is_too_much() -> None:
    assert choice_of({(0, 2): (0.05, 10), (1, 2): (0.049, 10)})[0] == ((1, 2), False)


def test_doubling_without_gain_ends_the_search_starved_at_the_smallest_that_is_as_good() -> None:
    slow = {(0, 2): (0.9, 10.0), (1, 2): (0.9, 10.2), (1, 4): (0.9, 9.0)}
    choice, asked = choice_of({**slow, (2, 2): (0.9, 10.25), (2, 4): (0.0, 99.0)})
    assert choice == ((0, 2), True)
    assert asked[-1] == (2, 2)


def test_first_worker_may_cost_without_ending_the_search() -> None:
    """As measured with 0.5 ms a sample: 1.04 s without workers, 1.10 with one, 0.56 with two."""
    table: Table = {(0, 2): (0.8, 9.6), (1, 2): (0.8, 9.1), (1, 4): (0.8, 9.1), (2, 2): (0.03, 17)}
    assert choice_of(table)[0] == ((2, 2), False)


def test_cores_end_the_search_starved_at_the_best() -> None:
    table: Table = {(0, 2): (0.9, 10), (1, 2): (0.8, 12), (2, 2): (0.6, 20), (4, 2): (0.3, 40)}
    assert choice_of(table)[0] == ((4, 2), True)


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def simulated(clock: FakeClock, setting: Setting, *, cost_s: float) -> Iterator[Batch]:
    if not setting.workers:
        while True:
            clock.now_s += cost_s
            yield BATCH
    free_s = [clock.now_s] * setting.workers
    asked_s = deque([clock.now_s] * (setting.workers * setting.prefetch_factor))
    for worker in cycle(range(setting.workers)):
        free_s[worker] = max(free_s[worker], asked_s.popleft()) + cost_s
        clock.now_s = max(clock.now_s, free_s[worker])
        asked_s.append(clock.now_s)
        yield BATCH


def tuned_on_fake_clock(*, cost_s: float, step_s: float, cpus: int) -> Choice:
    clock = FakeClock()

    def take_step(batches: Iterator[Batch]) -> int:
        images, _ = next(batches)
        clock.now_s += step_s
        return len(images)

    def measure(setting: Setting) -> Served:
        batches = simulated(clock, setting, cost_s=cost_s)
        return served(batches, take_step, setting, synchronize=lambda: None, now=clock)

    return choose(settings(cpus), measure)


@pytest.mark.parametrize("num_steps", [0.5, 1.5, 1.9, 3.0, 3.7])
def test_enough_workers_are_found_where_workers_times_step_exceed_the_cost(num_steps):
    choice = tuned_on_fake_clock(cost_s=0.01 * num_steps, step_s=0.01, cpus=4)
    assert not choice.is_starved
    assert choice.setting.workers >= num_steps
    assert choice.setting.workers < 2 * max(1.0, num_steps)


def test_device_is_starved_where_all_cores_are_too_few() -> None:
    choice = tuned_on_fake_clock(cost_s=0.045, step_s=0.01, cpus=4)
    assert choice == ((4, 2), True)


def test_cheap_batches_need_no_workers() -> None:
    assert tuned_on_fake_clock(cost_s=0.0004, step_s=0.01, cpus=4) == ((0, 2), False)


def slept(setting: Setting, *, cost_s: float, step_s: float) -> Served:
    def make() -> Batch:
        time.sleep(cost_s)
        return BATCH

    def take_step(batches: Iterator[Batch]) -> int:
        images, _ = next(batches)
        time.sleep(step_s)
        return len(images)

    with ThreadPoolExecutor(setting.workers) as pool:
        ready = deque(pool.submit(make) for _ in range(setting.workers * setting.prefetch_factor))

        def batches() -> Iterator[Batch]:
            while True:
                batch = ready.popleft().result()
                ready.append(pool.submit(make))
                yield batch

        return served(batches(), take_step, setting, synchronize=lambda: None)


def test_starving_is_seen_in_real_time() -> None:
    """One worker with 16 ms for a batch, steps of 4 ms: the device waits for 75 % of the time."""
    found = slept(Setting(1, 2), cost_s=0.016, step_s=0.004)
    assert 0.5 < found.wait_frac < 0.85
    assert 4 / 0.032 < found.samples_per_s < 4 / 0.016


def test_share_of_waiting_is_exact() -> None:
    clock = FakeClock()

    def take_step(fed: Iterator[Batch]) -> int:
        images, _ = next(fed)
        clock.now_s += 0.75
        return len(images)

    source = simulated(clock, Setting(0, 2), cost_s=0.25)
    found = served(source, take_step, Setting(0, 2), synchronize=lambda: None, now=clock)
    assert found == (Setting(0, 2), 0.25, 4.0)


def auto() -> Recipe:
    return make_recipe(batch_size=4, loader=Streaming(workers="auto"))


@pytest.mark.slow
def test_real_loader_is_measured_and_random_numbers_stay() -> None:
    random = torch.get_rng_state()
    recipe = resolved(auto(), make_splits(40), device=CPU)
    assert isinstance(recipe.loader, Streaming)
    granted = min(loader_workers.usable_cores(), torch.get_num_threads())
    assert recipe.loader.workers in range(granted + 1)
    assert recipe.model_copy(update={"loader": auto().loader}) == auto()
    assert torch.equal(random, torch.get_rng_state())


def test_recipe_without_auto_is_returned_as_it_is() -> None:
    for loader in (Streaming(workers=1), Resident()):
        recipe = make_recipe(loader=loader)
        assert resolved(recipe, make_splits(), device=CPU) is recipe


def labels_of(recipe: Recipe, splits: Splits, *, setting: Setting) -> list[list[int]]:
    chosen = loader_workers._with(recipe, setting)
    loader = loader_workers.open_loader(chosen, splits.train, splits, seed=3, device=CPU)
    try:
        epochs = chain.from_iterable(loader.epoch(epoch) for epoch in count())
        return [labels.tolist() for _, labels in islice(epochs, 12)]
    finally:
        loader.close()


def test_what_is_chosen_leaves_order_and_set_as_they_were() -> None:
    found = [
        labels_of(auto(), make_splits(20), setting=Setting(workers, 2)) for workers in (0, 1, 2)
    ]
    assert found[0] == found[1] == found[2]

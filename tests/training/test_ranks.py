import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from helpers.training.tiny import CPU, NUM_CLASSES, Tiny, make_recipe, make_spec
from torch import Tensor, nn

from tune_speed.components.models import MODELS
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.components.speedups.base import Shape
from tune_speed.data.orders import Share
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.testing.entry import seeded
from tune_speed.training import side_by_side
from tune_speed.training.ranks import ALONE, JointClock, JointTurn, JointTurnstile, Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.side_by_side import time_side_by_side
from tune_speed.training.step.step import Group, Stepper

SHAPE = Shape(6, 6)
WAIT_S = 60.0
PLAIN = Sgd(lr=1.0, momentum=0.0, nesterov=False)
"""Each step changes the weights by minus the gradient."""
Results = list[dict[str, Any]]


class Skipping(nn.Module):
    def __init__(self, passes: tuple[int, ...]) -> None:
        super().__init__()
        self.main, self.branch = nn.Linear(36, NUM_CLASSES), nn.Linear(36, NUM_CLASSES)
        self.passes, self.num_passes = passes, 0

    def forward(self, images: Tensor) -> Tensor:
        self.num_passes += 1
        logits: Tensor = self.main(images.flatten(1))
        is_taken = self.num_passes in self.passes
        return logits + self.branch(images.flatten(1)) if is_taken else logits


def make_model(norm: str = "group") -> nn.Module:
    torch.manual_seed(0)
    model = Tiny(norm=norm).build(in_channels=1, num_classes=NUM_CLASSES, image_size=6)
    return model.to(memory_format=torch.channels_last)


def make_skipping(passes: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return Skipping(passes)


def recipe_of(ranks: Ranks, *, micro_batch: int = 2, samples_per_step: int = 8) -> Recipe:
    return make_recipe(
        optimizer=PLAIN,
        batch_size=micro_batch,
        devices=ranks.size,
        accumulation_steps=samples_per_step // micro_batch // ranks.size,
    )


def gradient(
    model: nn.Module, ranks: Ranks = ALONE, *, num_samples: int = 8, **fields: int
) -> Tensor:
    recipe = recipe_of(ranks, **fields)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    images = torch.randn((num_samples, 1, 6, 6), generator=torch.Generator().manual_seed(1))
    labels, share = torch.arange(num_samples) % NUM_CLASSES, ranks.share(recipe.samples_per_step)
    own = torch.from_numpy(share.of(np.arange(num_samples)))
    parts = [(images[i], labels[i]) for i in own.split(recipe.batch_size or 0) if len(i)]
    forward = ranks.wrap(model, may_skip=True)
    group = Group(num_samples, parts or [(images[:2], labels[:2])], share.counts(num_samples))
    Stepper(model, forward, recipe, device=CPU, ranks=ranks).learn(group, SHAPE, frac=1.0)
    return before - torch.cat([p.detach().flatten() for p in model.parameters()])


def outcomes(ranks: Ranks) -> dict[str, Any]:
    model = make_model()
    with torch.no_grad():
        for weight in model.parameters():
            weight += ranks.rank
    ranks.align(model)
    found = {
        "aligned": torch.cat([p.detach().flatten() for p in model.parameters()]),
        "said": ranks.broadcast(f"rank {ranks.rank} says so"),
        "sum": float(ranks.sum(torch.tensor(1.0 + ranks.rank))),
        "lately": [ranks.lately(ranks.is_first and i == 2) for i in range(5)],
        "ragged": gradient(make_model(), ranks, num_samples=5),
        "too few": gradient(make_model(), ranks, num_samples=1),
        "batch": gradient(make_model("batch"), ranks),
        "whole batch": gradient(make_model("batch"), ranks, micro_batch=4),
        # Of four micro-batches, two a rank, the second alone takes the branch; or none does.
        "skipped": gradient(make_skipping((2,) if ranks.is_first else ()), ranks),
        "never": gradient(make_skipping(()), ranks),
        "group": gradient(make_model(), ranks),
    }
    ranks.seed(0)
    return found | {"noise": torch.rand(1).item()}


def work(rank: int, meeting: str, results: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    place = Ranks.joined(rank=rank, size=2, backend="gloo", init_method=meeting, wait_s=WAIT_S)
    with place as ranks:
        results.put((rank, {k: _plain(v) for k, v in outcomes(ranks).items()}))


def _plain(value: Any) -> Any:
    return value.numpy() if isinstance(value, Tensor) else value


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    meeting = (tmp_path_factory.mktemp("ranks") / "meeting").as_uri()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    # The first is this process, which has torch imported.
    second = context.Process(target=work, args=(1, meeting, results))
    second.start()
    with seeded(0):
        work(0, meeting, results)
    found = dict(results.get(timeout=WAIT_S) for _ in range(2))
    second.join()
    yield [found[0], found[1]]


def largest_difference(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


@pytest.mark.slow
@pytest.mark.parametrize(("case", "num_samples"), [("group", 8), ("ragged", 5), ("too few", 1)])
def test_gradient_is_that_of_one_process(pair: Results, case: str, num_samples: int) -> None:
    alone = gradient(make_model(), num_samples=num_samples)
    assert float(alone.abs().max()) > 0.01
    assert all(largest_difference(found[case], alone) < 1e-6 for found in pair)


def test_batch_norm_normalises_on_each_device_as_in_each_micro_batch(pair: Results) -> None:
    accumulated = gradient(make_model("batch"), micro_batch=4)
    assert largest_difference(pair[0]["whole batch"], accumulated) < 1e-6
    one_batch = gradient(make_model("batch"), micro_batch=8)
    assert largest_difference(pair[0]["whole batch"], one_batch) > 1e-3


def test_parameters_may_have_a_part_in_few_micro_batches_or_none(pair: Results) -> None:
    assert largest_difference(pair[0]["skipped"], gradient(make_skipping((2,)))) < 1e-6
    assert largest_difference(pair[1]["skipped"], pair[0]["skipped"]) == 0
    assert largest_difference(pair[1]["never"], gradient(make_skipping(()))) < 1e-6


def test_ranks_have_the_weights_of_the_first(pair: Results) -> None:
    expected = torch.cat([p.detach().flatten() for p in make_model().parameters()])
    assert all(largest_difference(found["aligned"], expected) == 0 for found in pair)


def test_the_first_decides_and_its_flag_arrives_one_call_later(pair: Results) -> None:
    assert [found["said"] for found in pair] == ["rank 0 says so"] * 2
    assert [found["lately"] for found in pair] == [[False, False, False, True, False]] * 2


def test_sums_are_over_all_and_noise_is_each_ranks_own(pair: Results) -> None:
    assert [found["sum"] for found in pair] == [3.0, 3.0]
    assert pair[0]["noise"] != pair[1]["noise"]


def test_alone_nobody_is_asked() -> None:
    model = make_model()
    assert ALONE.wrap(model, may_skip=True) is model
    assert ALONE.broadcast("go") == "go" and ALONE.lately(True)
    assert ALONE.share(8) == Share(0, 1, 8)


def test_meeting_that_nobody_comes_to_ends(tmp_path: Path) -> None:
    meeting = (tmp_path / "meeting").as_uri()
    place = Ranks.joined(rank=0, size=2, backend="gloo", init_method=meeting, wait_s=1.0)
    with pytest.raises(RuntimeError), place:
        pass


Found = TypeVar("Found")
WAIT_S_TOGETHER = 20.0


class Threads(Ranks):
    LATE_S = 0.0
    """Every word between them takes so long [s]."""

    def __init__(self, rank: int, said: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(rank, len(said))
        self._said, self._barrier = said, barrier

    def gather(self, value: Found) -> list[Found]:
        time.sleep(self.LATE_S)
        self._said[self.rank] = value
        self._barrier.wait(WAIT_S_TOGETHER)
        said = list(self._said)
        self._barrier.wait(WAIT_S_TOGETHER)
        return said

    def broadcast(self, value: Found) -> Found:
        return self.gather(value)[0]


def on_each(size: int, call: Callable[[Ranks], Found]) -> list[Found]:
    said, barrier = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        ranks = (Threads(rank, said, barrier) for rank in range(size))
        return list(pool.map(call, ranks))


def take_turn(
    folder: Path, keys: list[str], look: Callable[[JointTurn], Found], *, patience_s: float = 5.0
) -> list[Found | None]:
    def call(ranks: Ranks) -> Found | None:
        key = keys[ranks.rank]
        with ExitStack() as stack:
            own = Turnstile(None, why_not="Another holds it.")
            if keys.index(key) == ranks.rank:
                own = stack.enter_context(Turnstile.open(key, folder=folder))
            together = JointTurnstile(ranks, own, device_key=key)
            with together.measuring(patience_s=patience_s, needs_s=0.5) as turn:
                return None if turn is None else look(turn)

    return on_each(len(keys), call)


def can_measure(folder: Path, key: str) -> bool:
    with (
        Turnstile.open(key, folder=folder) as turnstile,
        turnstile.measuring(patience_s=0) as turn,
    ):
        return turn is not None


@pytest.mark.parametrize("keys", [["a", "b"], ["b", "a"], ["a", "a"], ["b", "a", "b"]])
def test_all_devices_are_held_together_each_once(tmp_path: Path, keys: list[str]) -> None:
    def look(turn: JointTurn) -> tuple[bool, bool, float]:
        is_free = any(can_measure(tmp_path, key) for key in keys)
        return turn.is_isolated, is_free, turn.left_s

    first, *others = take_turn(tmp_path, keys, look)
    assert first is not None and first[:2] == (True, False) and 9.0 < first[2] <= 10.0
    assert all(other == first for other in others)
    assert all(can_measure(tmp_path, key) for key in keys)


@pytest.mark.parametrize("taken", ["a", "b"])
def test_all_give_up_where_one_device_is_not_to_be_had(tmp_path: Path, taken: str) -> None:
    with Turnstile.open(taken, folder=tmp_path) as other, other.busy():
        found = take_turn(tmp_path, ["a", "b"], lambda turn: True, patience_s=0.3)
    assert found == [None, None]
    assert can_measure(tmp_path, "a") and can_measure(tmp_path, "b")


def test_a_turn_is_isolated_only_where_it_is_on_all_devices(tmp_path: Path) -> None:
    def look(turn: JointTurn) -> tuple[bool, float]:
        with Turnstile.open("b", folder=tmp_path) as impatient:
            impatient._continue_regardless(time.monotonic())
            return turn.is_isolated, turn.left_s

    found = take_turn(tmp_path, ["a", "b"], look)
    assert [each and each[0] for each in found] == [False, False]


def test_trials_whose_ranks_stand_the_other_way_round_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Threads, "LATE_S", 0.2)

    def both(keys: list[str]) -> list[bool | None]:
        return take_turn(tmp_path, keys, lambda turn: turn.is_isolated)

    began_s = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(both, [["a", "b"], ["b", "a"]]))
    assert found == [[True, True]] * 2 and time.monotonic() - began_s < 4.0


def test_the_clock_is_the_firsts_when_all_have_come(tmp_path: Path) -> None:
    def look(ranks: Ranks) -> tuple[float, ...]:
        clock, times = JointClock(ranks), list[float]()
        for late_s in (0.0, 0.2, 0.0):
            time.sleep(late_s * ranks.rank)
            times.append(clock.now())
        return tuple(times)

    first, other = on_each(2, look)
    assert first == other
    began_s, late_s, end_s = first
    assert 0.2 <= late_s - began_s < 0.4 and 0 <= end_s - late_s < 0.1


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", Tiny)


def test_recipes_take_turns_and_each_window_is_of_its_own_kind_of_step() -> None:
    specs = [make_spec(batch_size=batch_size) for batch_size in (8, 16)]
    windows = list(time_side_by_side(specs, rounds=2))
    keys = [each.key for each in windows]
    assert keys == keys[:2] * 2 and len(set(keys)) == 2
    assert {each.measured_in for each in windows} == {f"study/{side_by_side.LABEL}"}
    assert len({each.place for each in windows}) == 1
    assert all(each.step_s > 0 and each.reference_s and each.measured_at for each in windows)


def test_kinds_of_step_within_a_recipe_have_windows_each() -> None:
    stages = {"batch_growth": {"batch_stages": {"factors": [1, 2], "at": [0.0, 0.5]}}}
    (first, second) = time_side_by_side([make_spec(epochs=4.0, speedups=stages)], rounds=1)
    assert first.key != second.key

"""Two processes that train one model against one process that accumulates."""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training import CPU, NUM_CLASSES, Tiny, make_recipe

from tune_speed.components.optim.optimizers import Sgd
from tune_speed.components.speedups.base import Shape
from tune_speed.data.orders import Share
from tune_speed.testing.entry import seeded
from tune_speed.training.ranks import ALONE, Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import Group, Stepper

SHAPE = Shape(6, 6)
WAIT_S = 60.0
PLAIN = Sgd(lr=1.0, momentum=0.0, nesterov=False)
"""Each step changes the weights by minus the gradient."""
Results = list[dict[str, Any]]


class Skipping(nn.Module):
    """A second branch that only some forward passes take."""

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
    """Returns what one step over the first samples subtracts from the weights, in one vector."""
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
    """Returns what one of two ranks got."""
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
    """What rank 0 and rank 1 of two real processes got."""
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

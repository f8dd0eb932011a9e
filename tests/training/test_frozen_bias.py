"""A whitening layer's bias that is trained for a part of the run: by hand, and with checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training.checkpoints import (
    Case,
    Ended,
    assert_same_run,
    disturb,
    open_checkpoints,
    run_on,
)
from helpers.training.tiny import CPU, make_images, make_workload
from torch import Tensor
from torch.nn import functional

from tune_speed.components.speedups.base import Shape
from tune_speed.data.split import Splits, channel_statistics
from tune_speed.training.build import Job
from tune_speed.training.loop import set_up
from tune_speed.training.ranks import ALONE
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import Group, Stepper

LR = 0.05
NUM_STEPS, NUM_TRAINED = 8, 3
"""Of 24 images in batches of 12, four epochs."""


def case_of(**optimizer: Any) -> Case:
    """Returns a run whose first bias is trained in the first 3 of 8 steps."""
    images = make_images(24, size=8, channels=3)
    splits = Splits(images, images, images, *channel_statistics(images.pixels), 3, split_hash="s")
    tree = {
        "model": {"speednet": {"width1": 4, "width2": 8, "width3": 8}},
        "optimizer": {"sgd": {"lr": LR, "momentum": 0.9, "nesterov": False, **optimizer}},
        "speedups": {"init": {"whitening": {"frozen": True, "bias_frac": 0.375}}},
        "epochs": 4,
        "batch_size": 12,
    }
    return Case(Recipe.model_validate(tree), splits, make_workload())


def ended(case: Case, **options: Any) -> Ended:
    run = run_on(case, **options)
    assert run is not None
    return run


@pytest.fixture
def biases(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The first convolution's bias after each step of training."""
    seen, take = list[Tensor](), Stepper.take

    def watched(stepper: Stepper, group: Group, shape: Shape, *, frac: float) -> Tensor:
        loss_sum = take(stepper, group, shape, frac=frac)
        seen.append(dict(stepper.model.named_parameters())["conv.bias"].detach().clone())
        return loss_sum

    monkeypatch.setattr(Stepper, "take", watched)
    return seen


def test_bias_moves_in_its_steps_and_not_by_a_bit_after_them(biases: list[Tensor]) -> None:
    """Neither momentum nor decay moves it."""
    ended(case_of(weight_decay=0.1, decay_norms_and_biases=True))
    assert len(biases) == NUM_STEPS
    pairs = zip([torch.zeros(24), *biases], biases, strict=False)
    assert [torch.equal(*pair) for pair in pairs] == [k >= NUM_TRAINED for k in range(NUM_STEPS)]


def by_hand(case: Case, filters: Tensor) -> tuple[list[float], dict[str, Tensor]]:
    """Returns the mean loss of each step and the final weights, by plain PyTorch."""
    job = Job(case.workload, case.recipe, case.splits, case.seed, CPU, "validation", ALONE)
    network: Any
    network, loader = set_up(job)
    with torch.no_grad():
        network.conv.weight.copy_(filters)
        network.conv.bias.zero_()
    rest = [p for name, p in network.named_parameters() if name != "conv.weight"]
    sgd, losses = torch.optim.SGD(rest, lr=LR, momentum=0.9), list[float]()
    network.train()
    for images, labels in (batch for epoch in range(4) for batch in loader.epoch(epoch)):
        bias = network.conv.bias if len(losses) < NUM_TRAINED else network.conv.bias.detach()
        features = functional.gelu(functional.conv2d(images, filters, bias))
        loss = functional.cross_entropy(network.head(network.blocks(features)), labels)
        sgd.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.step()
        losses.append(float(loss.detach()))
    return losses, network.state_dict()


def test_run_is_that_of_a_loop_by_hand() -> None:
    case = case_of()
    run = ended(case)
    losses, weights = by_hand(case, run.weights["conv.weight"])
    # An evaluation has the mean over the steps since the one before.
    means = [sum(losses[k : k + 2]) / 2 for k in range(0, NUM_STEPS, 2)]
    assert [e.train_loss for e in run.result.evaluations[1:]] == pytest.approx(means, rel=1e-4)
    for name, tensor in run.weights.items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("close_after", [1, 2, 3])
def test_run_that_resumes_before_or_after_is_the_whole_one(
    close_after: int, tmp_path: Path, biases: list[Tensor]
) -> None:
    case = case_of()
    whole = ended(case)
    assert (
        run_on(case, checkpoints=open_checkpoints(tmp_path / "c"), close_after=close_after) is None
    )
    disturb()
    biases.clear()
    pieced = ended(case, checkpoints=open_checkpoints(tmp_path / "c"))
    assert_same_run(whole, pieced)
    assert len(biases) < NUM_STEPS and torch.equal(biases[-1], whole.weights["conv.bias"])

import copy
from collections import deque
from itertools import islice
from typing import Any

import numpy as np
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
from helpers.training.tiny import CPU, Tiny, make_images, make_recipe, make_workload
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_pre_hook
from torchvision.models import mnasnet0_5

from tune_speed.components.optim.optimizers import Adam, Sgd, YellowFin
from tune_speed.components.speedups.base import Shape
from tune_speed.components.speedups.initial_weights import EPOCH_OF_PART
from tune_speed.data.base import Images
from tune_speed.data.split import Splits, channel_statistics
from tune_speed.training import preparation
from tune_speed.training.build import Job, build_model, open_loader
from tune_speed.training.loop import set_up
from tune_speed.training.preparation import _steps, prepare, without_trace
from tune_speed.training.ranks import ALONE
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import Group, Stepper


def splits_of(images):
    mean, std = channel_statistics(images.pixels)
    return Splits(images, images, images, mean, std, 3, split_hash="s" * 16)


def prepared(recipe, splits):
    torch.manual_seed(0)
    model = build_model(recipe, splits, seed=0, device=CPU)
    loader = open_loader(recipe, splits.train, splits, seed=0, device=CPU)
    before = copy.deepcopy(model)
    job = Job(make_workload(), recipe, splits, 0, CPU, "validation", ALONE)
    return (
        before,
        model,
        loader,
        prepare(
            job, model, loader, model, take=lambda steps, count: deque(islice(steps, count), 0)
        ),
    )


@pytest.mark.parametrize("accumulation_steps", [1, 4])
def test_pretraining_takes_the_rate_of_its_own_steps(accumulation_steps):
    """Goyal et al. 2.1: a step of k times fewer samples has a rate k times lower; 2.2: warm-up."""
    recipe = make_recipe(
        optimizer=Sgd(lr=0.2),
        batch_size=5,
        accumulation_steps=accumulation_steps,
        speedups={"init": {"pretrain_subset": {"part": 0.5, "epochs": 5}}},
    )
    before, model, loader, _ = prepared(recipe, splits_of(make_images(60)))
    plain = torch.optim.SGD(before.parameters(), lr=1.0, momentum=0.9, nesterov=True)
    # 5 passes of 6 batches: a tenth of 30 steps is 3.
    batches = [batch for _ in range(5) for batch in list(loader.epoch(EPOCH_OF_PART))[:6]]
    for number, (images, labels) in enumerate(batches, start=1):
        plain.param_groups[0]["lr"] = 0.2 / accumulation_steps * min(1, number / 3)
        plain.zero_grad()
        functional.cross_entropy(before(images), labels).backward()
        plain.step()
    for one, other in zip(model.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_rate_is_scaled_by_the_samples_of_a_step():
    assert Sgd(lr=0.1).rate_factor(8, of=128) == 1 / 16
    # Never above what was chosen for a smaller step, unless it was given per examples.
    assert Adam(lr=0.1).rate_factor(128, of=64) == 1
    assert Sgd(lr=0.1, lr_per_examples=128).rate_factor(128, of=64) == 2
    assert YellowFin(lr=1.0).rate_factor(8, of=128) == 1


def test_the_least_valuable_part_is_what_a_trained_network_gets_right(monkeypatch):
    """Planted: images with a wrong label are the hardest, and are not in the easiest half."""
    images = make_images(600)
    is_wrong = np.random.default_rng(0).random(600) < 0.1
    labels = np.where(is_wrong, (images.labels + 1) % 3, images.labels)
    splits = splits_of(Images(images.pixels, labels))
    subset = {"part": 0.5, "which": "easiest", "epochs": 3}
    recipe = make_recipe(
        model=Tiny(norm="batch"), batch_size=8, speedups={"init": {"pretrain_subset": subset}}
    )
    fits = []

    def steps(stepper, batches, num_steps):
        fits.append(kept := [])
        return _steps(stepper, (kept.append(batch) or batch for batch in batches), num_steps)

    monkeypatch.setattr(preparation, "_steps", steps)
    _, _, loader, scores = prepared(recipe, splits)
    assert scores is None
    scoring, pretraining = fits
    assert sum(len(batch) for batch, _ in scoring) >= 600
    pixels = torch.from_numpy(splits.train.pixels).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (splits.mean, splits.std))
    plain = ((pixels - mean) / std).flatten(1)
    seen = torch.cat([batch for batch, _ in pretraining]).flatten(1)
    found = torch.cdist(seen, plain).argmin(1).tolist()
    passes = [set(found[start : start + 300]) for start in (0, 300, 600)]
    assert passes[0] == passes[1] == passes[2] and len(passes[0]) == 300
    assert found[:300] != found[300:600], "each pass has an order of its own"
    assert is_wrong[list(passes[0])].mean() < 0.02
    counts = np.bincount(labels[list(passes[0])])
    assert abs(counts - np.bincount(labels) / 2).max() <= 1
    # Training begins with the order that it has without.
    plain_loader = open_loader(recipe, splits.train, splits, seed=0, device=CPU)
    for (one, _), (other, _) in zip(loader.epoch(0), plain_loader.epoch(0), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("lr", [0.1, 30.0])
def test_scores_find_wrong_labels_whatever_the_rate_of_the_recipe(lr):
    """Planted: images with a wrong label are the hardest of all, for a network that has learned."""
    images = make_images(600)
    is_wrong = np.random.default_rng(0).random(600) < 0.1
    labels = np.where(is_wrong, (images.labels + 1) % 3, images.labels)
    recipe = make_recipe(
        model=Tiny(norm="batch"),
        optimizer=Sgd(lr=lr),
        batch_size=8,
        accumulation_steps=4,
        order={"curriculum": {"scoring_epochs": 12.0}},
    )
    *_, scores = prepared(recipe, splits_of(Images(images.pixels, labels)))
    above = (scores[is_wrong][:, None] > scores[~is_wrong]).mean()
    assert above > 0.9


def test_images_of_another_set_keep_their_size_while_those_of_the_run_grow():
    other = {"pretrain_other": {"dataset": {"name": "digits"}, "train_samples": 40}}
    recipe = make_recipe(speedups={"init": other, "resolution": "progressive_resizing"})
    shapes = []
    hook = register_module_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape))
    prepared(recipe, splits_of(make_images(60)))
    hook.remove()
    assert recipe.speedups.shape(Shape(8, 8), frac=0.0) == Shape(4, 4)
    # Of all 40 images: other passes check whether the network takes images of a size.
    assert {s[2:] for s in shapes if len(s) == 4 and s[:2] == (40, 1)} == {(8, 8)}


def test_network_that_asks_for_the_version_of_its_state_is_put_back():
    """torchvision's MNASNet does; a plain copy of its state does not say it."""
    network = mnasnet0_5(num_classes=10)
    before = copy.deepcopy(network.state_dict())
    with without_trace(network, device=CPU):
        network(torch.randn(4, 3, 32, 32))
        changed = network.state_dict()["layers.1.running_mean"]
        assert not torch.equal(changed, before["layers.1.running_mean"])
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


LR = 0.05
NUM_STEPS, NUM_TRAINED = 8, 3
"""Of 24 images in batches of 12, four epochs."""


def case_of(**optimizer: Any) -> Case:
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
    seen, take = list[Tensor](), Stepper.take

    def watched(stepper: Stepper, group: Group, shape: Shape, *, frac: float) -> Tensor:
        loss_sum = take(stepper, group, shape, frac=frac)
        seen.append(dict(stepper.model.named_parameters())["conv.bias"].detach().clone())
        return loss_sum

    monkeypatch.setattr(Stepper, "take", watched)
    return seen


def test_bias_moves_in_its_steps_and_not_by_a_bit_after_them(biases: list[Tensor]) -> None:
    ended(case_of(weight_decay=0.1, decay_norms_and_biases=True))
    assert len(biases) == NUM_STEPS
    pairs = zip([torch.zeros(24), *biases], biases, strict=False)
    assert [torch.equal(*pair) for pair in pairs] == [k >= NUM_TRAINED for k in range(NUM_STEPS)]


def by_hand(case: Case, filters: Tensor) -> tuple[list[float], dict[str, Tensor]]:
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
def test_run_that_resumes_before_or_after_is_the_whole_one(close_after, tmp_path, biases):
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

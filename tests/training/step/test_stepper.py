import copy
from collections.abc import Callable
from typing import Any

import pydantic
import pytest
import torch
from helpers.components.techniques import RECORDED
from helpers.training.tiny import (
    CPU,
    NUM_CLASSES,
    Tiny,
    make_images,
    make_recipe,
    make_splits,
    make_workload,
    to_end,
)
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.components.models.cifar import ResNet
from tune_speed.components.optim.optimizers import Adam, AdamW, Sgd, Swats
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.components.speedups.base import Shape
from tune_speed.core.records import RunResult
from tune_speed.data.split import Splits, channel_statistics
from tune_speed.training.build import Job, build_model
from tune_speed.training.loop import train
from tune_speed.training.ranks import Ranks
from tune_speed.training.recipe import LEAST_EPS, Recipe
from tune_speed.training.step import recorded
from tune_speed.training.step.step import Group, Stepper

SHAPE = Shape(6, 6)
LR = 0.125


def make_model(**fields: Any) -> nn.Module:
    torch.manual_seed(0)
    config = Tiny(norm="batch", **fields)
    return config.build(in_channels=1, num_classes=NUM_CLASSES, image_size=6)


def make_group(sizes: tuple[int, ...] = (8, 4), *, seed: int = 0) -> Group:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn((sum(sizes), 1, 6, 6), generator=generator)
    labels = torch.arange(sum(sizes)) % NUM_CLASSES
    parts = list(zip(images.split(sizes), labels.split(sizes), strict=True))
    return Group(sum(sizes), parts)


def recipe_of(**fields: Any) -> Recipe:
    return make_recipe(optimizer=Sgd(lr=LR, momentum=0.0, nesterov=False), **fields)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_step_is_plain_gradient_descent_and_returns_its_sum_of_losses() -> None:
    model, group = make_model(), make_group((8,))
    plain, (images, labels) = copy.deepcopy(model), next(iter(group.micro_batches))
    loss = functional.cross_entropy(plain(images), labels)
    gradients = torch.autograd.grad(loss, list(plain.parameters()))
    stepper = Stepper(model, model, recipe_of(), device=CPU)
    found = stepper.take(group, SHAPE, frac=0.5)
    assert found.item() == pytest.approx(8 * loss.item(), rel=1e-6)
    for stepped, before, change in zip(
        model.parameters(), plain.parameters(), gradients, strict=True
    ):
        torch.testing.assert_close(stepped, before - LR * change)


def test_average_follows_the_weights_of_a_run() -> None:
    model = make_model()
    recipe = recipe_of(speedups={"averaging": {"ema": {}}})
    stepper = Stepper(model, model, recipe, device=CPU)
    stepper.averager = averager = recipe.speedups.averaging.averager(model)
    assert averager is not None
    before = weights(averager.model)
    for _ in range(30):
        stepper.take(make_group(), SHAPE, frac=1.0)
    assert not torch.equal(before[-1], weights(averager.model)[-1])


def test_still_step_learns_nothing_but_does_the_work_of_one() -> None:
    model = make_model()
    recipe = recipe_of(speedups={"averaging": {"ema": {}}})
    stepper = Stepper.still(model, model, recipe, device=CPU)
    before = weights(model)
    mean = model.norm.running_mean.clone()
    stepper.take_still(make_group(), SHAPE)
    assert all(map(torch.equal, before, weights(model)))
    assert not torch.equal(mean, model.norm.running_mean)
    assert stepper.averager is not None


@pytest.mark.parametrize(
    "fields", [{}, {"accumulation_steps": 2}, {"clip_norm": 0.05}, {"precision": "fp16"}]
)
def test_recorded_steps_are_the_launched_ones_to_the_bit(recordings, fields):
    learned = {}
    for is_recorded in (False, True):
        model = make_model(dropout=0.5)
        recipe = recipe_of(cuda_graph=True, **fields)
        stepper = Stepper(model, model, recipe, device=CPU, is_recorded=is_recorded)
        torch.manual_seed(1)
        groups = [make_group(sizes, seed=i) for i, sizes in enumerate([(8, 8), (8, 8), (8, 3)])]
        losses = [stepper.take(group, SHAPE, frac=0.5).item() for group in groups]
        learned[is_recorded] = losses, weights(model), list(model.buffers())
    (losses, *tensors), (losses_again, *tensors_again) = learned[False], learned[True]
    assert losses == losses_again
    for ours, theirs in zip(tensors, tensors_again, strict=True):
        assert all(map(torch.equal, ours, theirs))
    # Steps of 16, and one of 11. One memory serves both.
    assert recordings == [None, "pool 1"]


def test_kinds_beyond_the_most_are_launched(recordings, monkeypatch):
    monkeypatch.setattr(recorded, "MOST_KINDS", 1)
    model = make_model()
    stepper = Stepper(model, model, recipe_of(cuda_graph=True), device=CPU)
    for size in (8, 7, 8, 6):
        before = weights(model)
        assert stepper.take(make_group((size,)), SHAPE, frac=0.5) > 0
        assert not torch.equal(before[-1], model.classifier.bias)
    assert recordings == [None]


def test_steps_are_recorded_only_where_the_recipe_and_the_device_allow_it(recordings, monkeypatch):
    def records(recipe: Recipe, *, is_recorded: bool = True) -> bool:
        model = make_model()
        stepper = Stepper(model, model, recipe, device=CPU, is_recorded=is_recorded)
        return stepper.recorder is not None

    assert records(recipe_of(cuda_graph=True))
    assert not records(recipe_of(cuda_graph=True), is_recorded=False)
    assert not records(recipe_of(cuda_graph=False))
    monkeypatch.delitem(recorded.RECORDERS, "cpu")
    assert not records(recipe_of(cuda_graph=True))


def test_parameter_that_is_frozen_before_a_step_stays(recordings: list[Any]) -> None:
    model = make_model()
    stepper = Stepper(model, model, recipe_of(cuda_graph=True), device=CPU)
    model.conv.weight.requires_grad_(False)
    before = weights(model)
    stepper.take(make_group((8,)), SHAPE, frac=0.5)
    assert torch.equal(before[0], model.conv.weight)
    assert not torch.equal(before[-1], model.classifier.bias)


def test_rank_without_a_micro_batch_learns_nothing_from_its_stand_in() -> None:
    model = make_model()
    before = weights(model)
    stepper = Stepper(model, model, recipe_of(devices=2), device=CPU, ranks=Ranks(1, 2))
    (batch, *_) = make_group((8,)).micro_batches
    loss_sum = stepper.take(Group(1, [batch], counts=(1, 0)), SHAPE, frac=0.5)
    assert loss_sum.item() == 0.0
    assert all(map(torch.equal, before, weights(model)))


def test_ranks_divide_so_that_their_average_is_the_gradient_of_the_whole() -> None:
    group = make_group((8, 8))
    halves = list(group.micro_batches)
    changes = []
    for rank in range(2):
        model = make_model()
        before = weights(model)
        stepper = Stepper(model, model, recipe_of(devices=2), device=CPU, ranks=Ranks(rank, 2))
        stepper.take(Group(16, [halves[rank]], counts=(8, 8)), SHAPE, frac=0.5)
        changes.append([a - b for a, b in zip(weights(model), before, strict=True)])
    whole = make_model()
    before = weights(whole)
    Stepper(whole, whole, recipe_of(accumulation_steps=2), device=CPU).take(group, SHAPE, frac=0.5)
    for one, other, after, start in zip(*changes, weights(whole), before, strict=True):
        torch.testing.assert_close((one + other) / 2, after - start, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_harder_samples_are_learned_from_more_often(precision: str) -> None:
    group = make_group((8,))
    (images, labels) = next(iter(group.micro_batches))
    recipe = recipe_of(precision=precision, speedups={"selection": {"selective_backprop": {}}})
    torch.manual_seed(1)
    learned = []
    for _ in range(30):
        model = Tiny(norm="none").build(in_channels=1, num_classes=NUM_CLASSES, image_size=6)
        losses = functional.cross_entropy(model(images), labels, reduction="none").detach()
        stepper = Stepper(model, model, recipe, device=CPU)
        found = stepper.take(group, SHAPE._replace(kept_frac=1 / 8), frac=0.6)
        place = (losses - found).abs().argmin()
        assert found.item() == pytest.approx(losses[place].item(), rel=0.05)
        learned.append(int((losses < losses[place]).sum()))
    # Of 8 places by loss the mean is 3.5; with weights q^7 it is above 6.
    assert sum(learned) / len(learned) > 5.5


@pytest.mark.parametrize("kernels", ["fused", "foreach"])
@pytest.mark.parametrize("precision", ["half", "half_fp32_norms"])
@pytest.mark.parametrize("optimizer", [Adam, AdamW, Swats])
def test_steps_in_fp16_are_sane_with_the_least_eps_that_is_accepted(optimizer, precision, kernels):
    recipe = make_recipe(
        model=ResNet(depth=8),
        optimizer=optimizer(lr=0.03, eps=LEAST_EPS),
        precision=precision,
        optimizer_kernels=kernels,
    )
    group = make_group((30,))
    model = build_model(recipe, make_splits(), seed=0, device=CPU)
    stepper, largest = Stepper(model, model, recipe, device=CPU), 0.0
    for _ in range(12):
        before = weights(model)
        stepper.learn(group, SHAPE, frac=1.0)
        moves = [(a.float() - b).abs().max() for a, b in zip(before, weights(model), strict=True)]
        largest = max(largest, float(max(moves)))
    bound = (2.0**-25 / (1 - 0.999)) ** 0.5 / LEAST_EPS
    assert 0 < largest < 1.01 * bound * 0.03
    # Weights begin below 1, and 12 steps of the rate alone are 0.36.
    assert max(float(weight.abs().max()) for weight in weights(model)) < 6


TREE: dict[str, Any] = {
    "model": {"resnet": {"depth": 8}},
    # A rate that fp32 has exactly: recorded steps read it from memory.
    "optimizer": {"sgd": {"lr": 0.0078125}},
    "epochs": 3,
    "batch_size": 8,
}


@pytest.fixture
def calls(recordings: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    record_on_cpu = recorded.RECORDERS["cpu"]

    def record(
        call: Callable[[], list[Tensor]], device: torch.device, pool: Any
    ) -> recorded.Recorded:
        found = record_on_cpu(call, device, pool)

        def replay() -> None:
            done.append("replay")
            found.replay()

        done.append("record")
        return found._replace(replay=replay)

    monkeypatch.setitem(recorded.RECORDERS, "cpu", record)
    return done


def run(**fields: Any) -> RunResult:
    images = make_images(24, size=8, channels=3)
    mean, std = channel_statistics(images.pixels)
    splits = Splits(images, images, images, mean, std, 3, split_hash="s" * 16)
    recipe = Recipe.model_validate({**TREE, **fields})
    return to_end(train(Job(make_workload(), recipe, splits, seed=0, device=CPU)))


def curve(result: RunResult) -> list[tuple[float | None, float | None]]:
    return [(e.loss, e.train_loss) for e in result.evaluations]


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_steps_learn_to_the_bit_what_launched_ones_do(name: str, calls: list[str]) -> None:
    launched = curve(run(**RECORDED[name]))
    assert not calls
    assert curve(run(**RECORDED[name], cuda_graph=True)) == launched
    assert "record" in calls and "replay" in calls


def test_each_kind_of_step_is_recorded_once_and_before_the_first_step(calls):
    # 24 images in steps of 9: three micro-batches of 3, and two in the last step of an epoch.
    run(batch_size=3, accumulation_steps=3, cuda_graph=True)
    assert calls.count("record") == 2
    ahead = calls[: len(calls) - 3 * 3]  # 3 steps an epoch, 3 epochs
    assert ahead.count("record") == 2


def test_recordings_are_limited_in_number(calls, monkeypatch):
    monkeypatch.setattr(recorded, "MOST_KINDS", 1)
    launched = curve(run(batch_size=7))
    assert curve(run(batch_size=7, cuda_graph=True)) == launched
    assert calls.count("record") == 1


def test_without_a_recorder_for_the_device_steps_are_launched() -> None:
    assert "cpu" not in recorded.RECORDERS
    assert curve(run(cuda_graph=True)) == curve(run())


@pytest.mark.parametrize(
    "name", [name for name, kind in SPEEDUPS.items() if not kind.is_recordable]
)
def test_technique_whose_steps_differ_refuses_recording(name: str) -> None:
    fields = {"easiest_first": {"groups": [0, 0, 1]}, "meprop": {"conv_frac": 0.5}}.get(name, {})
    with pytest.raises(pydantic.ValidationError, match=f"cuda_graph must be false with {name}"):
        Recipe.model_validate(
            {**TREE, "cuda_graph": True, "speedups": {SPEEDUPS[name].slot: {name: fields}}}
        )


def test_several_devices_refuse_recording() -> None:
    with pytest.raises(pydantic.ValidationError, match="cuda_graph must be false with several"):
        Recipe.model_validate({**TREE, "cuda_graph": True, "devices": 2})

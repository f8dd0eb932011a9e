"""The parts of a step by themselves: scales, momentum of other stages, steps that teach nothing."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training import CPU, NUM_CLASSES, Tiny, make_recipe

from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.components.speedups.base import Shape
from tune_speed.training.recipe import Recipe
from tune_speed.training.step import step as step_module
from tune_speed.training.step.step import (
    Group,
    Stepper,
    _unscale,
    build_optimizer,
    static_scale,
)

SHAPE = Shape(6, 6)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return Tiny().build(in_channels=1, num_classes=NUM_CLASSES, image_size=6)


def make_group(count: int = 8, *, seed: int = 0) -> Group:
    images = torch.randn((count, 1, 6, 6), generator=torch.Generator().manual_seed(seed))
    return Group(count, [(images, torch.arange(count) % NUM_CLASSES)])


def make_stepper(recipe: Recipe) -> Stepper:
    model = make_model()
    return Stepper(model, model, recipe, device=CPU)


def weights(stepper: Stepper) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in stepper.model.parameters()]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_momentum_begins_anew_where_another_stage_is_trained(name: str) -> None:
    lr = {"sgd": 0.1, "adamw": 0.01}[name]
    recipe = make_recipe(optimizer=OPTIMIZERS[name](lr=lr))
    stepper, fresh = make_stepper(recipe), make_stepper(recipe)
    for seed in range(2):
        stepper.take(make_group(seed=seed), SHAPE, frac=0.5)
    assert {group["stage"] for group in stepper.optimizer.param_groups} == {0}
    going_on = make_stepper(recipe)
    going_on.model.load_state_dict(stepper.model.state_dict())
    going_on.optimizer.load_state_dict(copy.deepcopy(stepper.optimizer.state_dict()))
    fresh.model.load_state_dict(stepper.model.state_dict())
    later = SHAPE._replace(stage=1)
    for each, shape in ((stepper, later), (going_on, SHAPE), (fresh, later)):
        each.take(make_group(seed=5), shape, frac=0.5)
    assert {group["stage"] for group in stepper.optimizer.param_groups} == {1}
    # As an optimizer that never took a step, and unlike one that goes on in its stage.
    for ours, new in zip(weights(stepper), weights(fresh), strict=True):
        torch.testing.assert_close(ours, new, rtol=0, atol=1e-7)
    assert not torch.equal(weights(stepper)[-1], weights(going_on)[-1])


class Watched:
    """An average that remembers when it took in the weights."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.fracs = model, list[float]()

    def update(self, model: nn.Module, *, frac: float) -> None:
        self.fracs.append(frac)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Has nothing to restore."""


def test_averages_are_updated_at_the_steps_end_and_of_still_steps_as_in_mid_run() -> None:
    stepper = make_stepper(make_recipe())
    stepper.averager = watched = Watched(stepper.model)
    stepper.take(make_group(), SHAPE, frac=0.25)
    stepper.take_still(make_group(), SHAPE)
    stepper.take(make_group(), SHAPE, frac=1.0)
    assert watched.fracs == [0.25, 0.5, 1.0]
    # Whoever measures needs no average.
    still = Stepper.still(stepper.model, stepper.model, make_recipe(), device=CPU)
    assert still.averager is None
    still.take_still(make_group(), SHAPE)
    assert {group["lr"] for group in still.optimizer.param_groups} == {0.0}


def test_speedups_ready_the_model_before_each_step_of_either_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stepper, readied = make_stepper(make_recipe()), []

    def ready(speedups: Any, model: nn.Module, shape: Shape) -> None:
        readied.append((model, shape, weights(stepper)[-1]))

    monkeypatch.setattr(type(stepper.recipe.speedups), "begin_step", ready)
    later = SHAPE._replace(stage=2)
    stepper.take(make_group(), SHAPE, frac=0.5)
    between = weights(stepper)[-1]
    stepper.take(make_group(), later, frac=0.5)
    stepper.take_still(make_group(), later)
    assert [(model, shape) for model, shape, _ in readied] == [
        (stepper.model, SHAPE),
        (stepper.model, later),
        (stepper.model, later),
    ]
    assert torch.equal(readied[1][2], between)


@pytest.mark.parametrize("still", [False, True])
def test_each_step_waits_for_a_device_that_falls_behind(
    monkeypatch: pytest.MonkeyPatch, still: bool
) -> None:
    paced = []
    monkeypatch.setattr(step_module, "pacer", lambda device: lambda: paced.append(device))
    stepper = make_stepper(make_recipe())
    for _ in range(3):
        if still:
            stepper.take_still(make_group(), SHAPE)
        else:
            stepper.take(make_group(), SHAPE, frac=0.5)
    assert paced == [CPU] * 3


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [("cpu", None, 2.0**10), ("cuda", None, 2.0**16), ("cuda", 8.0, 8.0), ("cpu", 8.0, 8.0)],
)
def test_loss_scale_begins_as_the_recipe_says_or_where_the_device_does_not_overflow(
    monkeypatch: pytest.MonkeyPatch, device: str, given: float | None, expected: float
) -> None:
    made = {}

    class Scaler(torch.amp.GradScaler):
        def __init__(self, device: str, **settings: Any) -> None:
            made.update(settings, device=device)

    monkeypatch.setattr(torch.amp, "GradScaler", Scaler)
    for precision in ("fp32", "bf16", "fp16"):
        recipe = make_recipe(precision=precision, init_loss_scale=given, loss_scale_growth_steps=7)
        build_optimizer(make_model(), recipe, device=torch.device(device))
        assert made == {
            "device": device,
            "enabled": precision == "fp16",
            "init_scale": expected,
            "growth_interval": 7,
        }


@pytest.mark.parametrize(("device", "is_fused"), [("cpu", True), ("cuda", True), ("meta", False)])
def test_fused_kernels_are_for_devices_that_have_them(device: str, is_fused: bool) -> None:
    recipe = make_recipe(optimizer=Sgd(lr=0.1), optimizer_kernels="fused")
    optimizer, _ = build_optimizer(make_model(), recipe, device=torch.device(device))
    assert {bool(group["fused"]) for group in optimizer.param_groups} == {is_fused}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "half", "half_fp32_norms"])
def test_only_half_without_a_scaler_has_a_static_scale(precision: str) -> None:
    recipe = make_recipe().model_copy(update={"precision": precision})
    expected = 12.5 if precision == "half_fp32_norms" else 1.0
    assert static_scale(recipe, 12.5) == expected


def test_static_scale_is_taken_off_every_gradient_of_every_kind() -> None:
    tensors = [
        torch.full((2,), 6.0, dtype=dtype, requires_grad=True)
        for dtype in (torch.float32, torch.float16, torch.float32, torch.float16)
    ]
    optimizer = torch.optim.SGD([{"params": tensors[:2]}, {"params": tensors[2:]}], lr=0.1)
    for number, tensor in enumerate(tensors[:3], start=1):
        tensor.grad = torch.full_like(tensor, 4.0 * number)
    for scale, expected in ((1.0, [4.0, 8.0, 12.0]), (4.0, [1.0, 2.0, 3.0])):
        _unscale(optimizer, scale)
        assert [float(t.grad[0]) for t in tensors[:3] if t.grad is not None] == expected
    assert tensors[3].grad is None


def test_step_of_half_precision_is_that_of_the_mean_loss_whatever_its_size() -> None:
    """The loss is multiplied by the number of samples, and the gradient divided by it."""
    changes = []
    for count, repeated in ((8, 1), (8, 4)):
        recipe = make_recipe(
            optimizer=Sgd(lr=0.5, momentum=0.0, nesterov=False), batch_size=count
        ).model_copy(update={"precision": "half_fp32_norms", "accumulation_steps": repeated})
        stepper = make_stepper(recipe)
        before = weights(stepper)
        ((images, labels),) = make_group(count).micro_batches
        group = Group(count * repeated, [(images, labels)] * repeated)
        stepper.learn(group, SHAPE, frac=0.5)
        changes.append([a - b for a, b in zip(before, weights(stepper), strict=True)])
    for one, many in zip(*changes, strict=True):
        torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-6)
    assert any(float(change.abs().max()) > 1e-3 for change in changes[0])

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers.training.tiny import CPU, NUM_CLASSES, Tiny, make_images, make_recipe
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.components.speedups.base import Shape
from tune_speed.data.split import Splits, channel_statistics
from tune_speed.training.build import build_model, set_seed
from tune_speed.training.ranks import ALONE, Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.step import step as step_module
from tune_speed.training.step.step import (
    Group,
    Stepper,
    _unscale,
    accumulation_of,
    build_optimizer,
    is_lone_image,
    micro_batch_of,
    static_scale,
    sum_of_losses,
)

SHAPE = Shape(6, 6)
PLAIN = Sgd(lr=1.0, momentum=0.0, nesterov=False)
"""Each step changes the weights by minus the gradient."""


def make_model(norm: str = "group") -> nn.Module:
    torch.manual_seed(0)
    return Tiny(norm=norm).build(in_channels=1, num_classes=NUM_CLASSES, image_size=6)


def make_batch(count: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn((count, 1, 6, 6), generator=generator)
    return images, torch.arange(count) % NUM_CLASSES


def step(
    model: nn.Module, batch: tuple[Tensor, Tensor], recipe: Recipe, *, sizes: tuple[int, ...]
) -> torch.amp.GradScaler:
    stepper = Stepper(model, model, recipe, device=CPU)
    parts = zip(*(tensor.split(sizes) for tensor in batch), strict=True)
    group = Group(sum(sizes), list(parts))
    stepper.learn(group, SHAPE, frac=1.0)
    return stepper.scaler


def gradient(model: nn.Module, stepped: nn.Module) -> Tensor:
    pairs = zip(model.parameters(), stepped.parameters(), strict=True)
    return torch.cat([(before - after).detach().flatten() for before, after in pairs])


def step_gradient(norm: str = "group", *, sizes: tuple[int, ...] = (20,), **fields) -> Tensor:
    model = make_model(norm)
    stepped = copy.deepcopy(model)
    step(stepped, make_batch(), make_recipe(optimizer=PLAIN, **fields), sizes=sizes)
    return gradient(model, stepped)


def mean_loss_gradient(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Returns the gradient of torch's mean loss, in float64."""
    images, labels = batch
    model = copy.deepcopy(model).double()
    loss = functional.cross_entropy(model(images.double()), labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("norm", ["group", "none"])
@pytest.mark.parametrize("sizes", [(20,), (10, 10), (8, 8, 4), (19, 1)])
def test_accumulated_gradient_is_that_of_one_batch(norm: str, sizes: tuple[int, ...]) -> None:
    expected = mean_loss_gradient(make_model(norm), make_batch())
    torch.testing.assert_close(
        step_gradient(norm, sizes=sizes).double(), expected, atol=1e-6, rtol=0
    )


def test_mean_of_means_would_be_wrong_for_a_ragged_group() -> None:
    model, (images, labels) = make_model(), make_batch()
    parts = zip(images.split(8), labels.split(8), strict=True)
    naive = sum(mean_loss_gradient(model, part) for part in parts) / 3
    assert (naive - step_gradient(sizes=(8, 8, 4))).abs().max() > 1e-3


def test_batch_norm_makes_the_split_matter() -> None:
    whole, split = step_gradient("batch"), step_gradient("batch", sizes=(8, 8, 4))
    assert (whole - split).abs().max() > 1e-3


def test_step_returns_the_sum_of_losses_and_leaves_no_gradient() -> None:
    model, (images, labels) = make_model(), make_batch()
    expected = functional.cross_entropy(model(images), labels, reduction="sum").item()
    group = Group(20, [(images[:8], labels[:8]), (images[8:], labels[8:])])
    loss_sum = Stepper(model, model, make_recipe(), device=CPU).learn(group, SHAPE, frac=1.0)
    assert loss_sum.item() == pytest.approx(expected, rel=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fp32_step_is_that_of_a_plain_loop(name: str) -> None:
    ours, plain = make_model(), make_model()
    images, labels = make_batch()
    recipe = make_recipe(optimizer=OPTIMIZERS[name](lr=0.1))
    scaler = step(ours, (images, labels), recipe, sizes=(20,))
    optimizer = recipe.optimizer.build(plain, effective_batch_size=20, fused=True)
    (functional.cross_entropy(plain(images), labels, reduction="sum") / 20).backward()
    optimizer.step()
    assert not scaler.is_enabled()
    assert all(map(torch.equal, ours.parameters(), plain.parameters()))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_kernels_do_what_the_others_do(name: str, memory_format: torch.memory_format) -> None:
    fused, plain = (make_model().to(memory_format=memory_format) for _ in range(2))
    config = OPTIMIZERS[name](lr=0.1, weight_decay=0.1)
    for model, is_fused in ((fused, True), (plain, False)):
        optimizer = config.build(model, effective_batch_size=20, fused=is_fused)
        for _ in range(3):
            images, labels = make_batch()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_gradient_is_close_to_that_of_fp32(precision: str) -> None:
    exact, low = step_gradient(), step_gradient(precision=precision, sizes=(8, 8, 4))
    assert not torch.equal(exact, low)
    assert functional.cosine_similarity(exact, low, dim=0) > 0.999
    assert low.norm().item() == pytest.approx(exact.norm().item(), rel=0.02)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_forward_runs_in_the_precision_and_loss_in_fp32(precision: str) -> None:
    seen = []

    def forward(images: Tensor) -> Tensor:
        seen.append(functional.linear(images.flatten(1), torch.ones((3, 36))))
        return seen[-1]

    loss = sum_of_losses(
        *make_batch(), make_recipe(precision=precision), frac=1.0, forward=forward, device=CPU
    )
    names = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert seen[0].dtype == names[precision]
    assert loss.dtype == torch.float32


def test_fp16_step_with_an_infinite_gradient_is_skipped_and_halves_the_scale() -> None:
    model = make_model()
    before = copy.deepcopy(model)
    model.conv.weight.register_hook(lambda grad: grad * math.inf)
    scaler = step(model, make_batch(), make_recipe(precision="fp16"), sizes=(20,))
    assert all(map(torch.equal, model.parameters(), before.parameters()))
    assert scaler.get_scale() == 2.0**9


def test_fp16_scale_starts_where_a_cpu_does_not_overflow_and_stays() -> None:
    scaler = step(make_model(), make_batch(), make_recipe(precision="fp16"), sizes=(8, 12))
    assert scaler.get_scale() == 2.0**10


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradient_is_clipped_after_it_was_unscaled(precision: str) -> None:
    free = step_gradient(precision=precision).norm()
    clipped = step_gradient(precision=precision, clip_norm=0.1, sizes=(8, 8, 4))
    assert free > 0.2
    assert clipped.norm().item() == pytest.approx(0.1, rel=1e-3)


def test_small_gradient_is_not_clipped() -> None:
    torch.testing.assert_close(step_gradient(clip_norm=1e3), step_gradient(), rtol=0, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothed_loss_is_that_of_the_smoothed_distribution(smoothing: float) -> None:
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(5, NUM_CLASSES)), np.array([0, 1, 2, 0, 1])
    target = np.eye(NUM_CLASSES)[labels] * (1 - smoothing) + smoothing / NUM_CLASSES
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    loss = sum_of_losses(
        torch.tensor(logits),
        torch.tensor(labels),
        make_recipe(label_smoothing=smoothing),
        frac=1.0,
        forward=lambda images: images,
        device=CPU,
    )
    assert loss.item() == pytest.approx(-(target * log_p).sum(), rel=1e-6)


def test_rate_per_examples_refers_to_the_effective_batch() -> None:
    recipe = make_recipe(
        optimizer=Sgd(lr=0.5, lr_per_examples=1024), batch_size=64, accumulation_steps=4
    )
    optimizer, _ = build_optimizer(make_model(), recipe, device=CPU)
    assert {group["lr"] for group in optimizer.param_groups} == {0.5 * 256 / 1024}


def test_value_clipping_bounds_each_gradient_before_the_norm_is_taken() -> None:
    free = step_gradient(sizes=(8, 8, 4))
    clipped = step_gradient(clip_value=0.01, sizes=(8, 8, 4))
    torch.testing.assert_close(clipped, free.clamp(-0.01, 0.01))
    both = step_gradient(clip_value=0.01, clip_norm=0.005)
    expected = free.clamp(-0.01, 0.01) * 0.005 / free.clamp(-0.01, 0.01).norm()
    torch.testing.assert_close(both, expected, rtol=1e-3, atol=1e-6)


def test_loss_scale_starts_and_grows_as_the_recipe_says() -> None:
    recipe = make_recipe(precision="fp16", init_loss_scale=8.0, loss_scale_growth_steps=2)
    model, scales = make_model(), list[float]()
    stepper = Stepper(model, model, recipe, device=CPU)
    for _ in range(4):
        scales.append(stepper.scaler.get_scale())
        stepper.learn(Group(20, [make_batch()]), SHAPE, frac=1.0)
    assert [*scales, stepper.scaler.get_scale()] == [8, 8, 16, 16, 32]


def test_batch_norm_of_one_pixel_is_told_from_other_errors() -> None:
    with pytest.raises(ValueError) as raised:
        nn.BatchNorm2d(4)(torch.zeros((1, 4, 1, 1)))
    assert is_lone_image(raised.value)
    assert not is_lone_image(ValueError("another"))


# Those without a schedule have one kind, for all tensors at once, unless another is asked for.
@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if not OPTIMIZERS[n].averages_weights])
def test_kernels_of_the_optimizer_are_those_of_the_recipe(name: str) -> None:
    def groups(kernels: str) -> list[dict]:
        recipe = make_recipe(optimizer=OPTIMIZERS[name](lr=0.1), optimizer_kernels=kernels)
        return build_optimizer(make_model(), recipe, device=CPU)[0].param_groups

    has_kinds = "foreach" in groups("auto")[0]
    for kernels in ("fused", "foreach", "auto"):
        for group in groups(kernels):
            assert ("foreach" in group) == has_kinds
            assert not has_kinds or (group["foreach"] is True) == (kernels == "foreach")
            assert "fused" not in group or (group["fused"] is True) == (kernels == "fused")


def test_samples_of_a_step_are_spread_over_micro_batches_and_devices() -> None:
    recipe = make_recipe(batch_size=4, accumulation_steps=3, devices=2)
    assert (micro_batch_of(recipe), accumulation_of(recipe)) == (4, 3)
    assert Group(9, []).num_batches(recipe, ALONE) == 3
    shared = Group(9, [], counts=(5, 4))
    assert [shared.num_batches(recipe, Ranks(rank, 2)) for rank in range(2)] == [2, 1]


def test_only_samples_that_are_kept_are_learned_from() -> None:
    recipe = make_recipe(batch_size=4, speedups={"selection": {"selective_backprop": {}}})
    kept = Shape(6, 6, kept_frac=0.5)
    # Two micro-batches of 4 and one of 1, of which at least one is kept.
    assert Group(9, []).num_learned(recipe, kept) == 2 + 2 + 1
    assert Group(9, [], counts=(5, 4)).num_learned(recipe, kept) == 2 + 1 + 2
    assert Group(9, []).num_learned(make_recipe(batch_size=4), SHAPE) == 9


SHAPE_STEP_PARTS = Shape(6, 6)


def make_model_of_step_parts() -> nn.Module:
    torch.manual_seed(0)
    return Tiny().build(in_channels=1, num_classes=NUM_CLASSES, image_size=6)


def make_group(count: int = 8, *, seed: int = 0) -> Group:
    images = torch.randn((count, 1, 6, 6), generator=torch.Generator().manual_seed(seed))
    return Group(count, [(images, torch.arange(count) % NUM_CLASSES)])


def make_stepper(recipe: Recipe) -> Stepper:
    model = make_model_of_step_parts()
    return Stepper(model, model, recipe, device=CPU)


def weights(stepper: Stepper) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in stepper.model.parameters()]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_momentum_begins_anew_where_another_stage_is_trained(name: str) -> None:
    lr = {"sgd": 0.1, "adamw": 0.01}[name]
    recipe = make_recipe(optimizer=OPTIMIZERS[name](lr=lr))
    stepper, fresh = make_stepper(recipe), make_stepper(recipe)
    for seed in range(2):
        stepper.take(make_group(seed=seed), SHAPE_STEP_PARTS, frac=0.5)
    assert {group["stage"] for group in stepper.optimizer.param_groups} == {0}
    going_on = make_stepper(recipe)
    going_on.model.load_state_dict(stepper.model.state_dict())
    going_on.optimizer.load_state_dict(copy.deepcopy(stepper.optimizer.state_dict()))
    fresh.model.load_state_dict(stepper.model.state_dict())
    later = SHAPE_STEP_PARTS._replace(stage=1)
    for each, shape in ((stepper, later), (going_on, SHAPE_STEP_PARTS), (fresh, later)):
        each.take(make_group(seed=5), shape, frac=0.5)
    assert {group["stage"] for group in stepper.optimizer.param_groups} == {1}
    # As an optimizer that never took a step, and unlike one that goes on in its stage.
    for ours, new in zip(weights(stepper), weights(fresh), strict=True):
        torch.testing.assert_close(ours, new, rtol=0, atol=1e-7)
    assert not torch.equal(weights(stepper)[-1], weights(going_on)[-1])


class Watched:
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
    stepper.take(make_group(), SHAPE_STEP_PARTS, frac=0.25)
    stepper.take_still(make_group(), SHAPE_STEP_PARTS)
    stepper.take(make_group(), SHAPE_STEP_PARTS, frac=1.0)
    assert watched.fracs == [0.25, 0.5, 1.0]
    # Whoever measures needs no average.
    still = Stepper.still(stepper.model, stepper.model, make_recipe(), device=CPU)
    assert still.averager is None
    still.take_still(make_group(), SHAPE_STEP_PARTS)
    assert {group["lr"] for group in still.optimizer.param_groups} == {0.0}


def test_speedups_ready_the_model_before_each_step_of_either_kind(monkeypatch):
    stepper, readied = make_stepper(make_recipe()), []

    def ready(speedups: Any, model: nn.Module, shape: Shape) -> None:
        readied.append((model, shape, weights(stepper)[-1]))

    monkeypatch.setattr(type(stepper.recipe.speedups), "begin_step", ready)
    later = SHAPE_STEP_PARTS._replace(stage=2)
    stepper.take(make_group(), SHAPE_STEP_PARTS, frac=0.5)
    between = weights(stepper)[-1]
    stepper.take(make_group(), later, frac=0.5)
    stepper.take_still(make_group(), later)
    assert [(model, shape) for model, shape, _ in readied] == [
        (stepper.model, SHAPE_STEP_PARTS),
        (stepper.model, later),
        (stepper.model, later),
    ]
    assert torch.equal(readied[1][2], between)


@pytest.mark.parametrize("still", [False, True])
def test_each_step_waits_for_a_device_that_falls_behind(monkeypatch, still):
    paced = []
    monkeypatch.setattr(step_module, "pacer", lambda device: lambda: paced.append(device))
    stepper = make_stepper(make_recipe())
    for _ in range(3):
        if still:
            stepper.take_still(make_group(), SHAPE_STEP_PARTS)
        else:
            stepper.take(make_group(), SHAPE_STEP_PARTS, frac=0.5)
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
        build_optimizer(make_model_of_step_parts(), recipe, device=torch.device(device))
        assert made == {
            "device": device,
            "enabled": precision == "fp16",
            "init_scale": expected,
            "growth_interval": 7,
        }


@pytest.mark.parametrize(("device", "is_fused"), [("cpu", True), ("cuda", True), ("meta", False)])
def test_fused_kernels_are_for_devices_that_have_them(device: str, is_fused: bool) -> None:
    recipe = make_recipe(optimizer=Sgd(lr=0.1), optimizer_kernels="fused")
    optimizer, _ = build_optimizer(make_model_of_step_parts(), recipe, device=torch.device(device))
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
    changes = []
    for count, repeated in ((8, 1), (8, 4)):
        recipe = make_recipe(
            optimizer=Sgd(lr=0.5, momentum=0.0, nesterov=False), batch_size=count
        ).model_copy(update={"precision": "half_fp32_norms", "accumulation_steps": repeated})
        stepper = make_stepper(recipe)
        before = weights(stepper)
        ((images, labels),) = make_group(count).micro_batches
        group = Group(count * repeated, [(images, labels)] * repeated)
        stepper.learn(group, SHAPE_STEP_PARTS, frac=0.5)
        changes.append([a - b for a, b in zip(before, weights(stepper), strict=True)])
    for one, many in zip(*changes, strict=True):
        torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-6)
    assert any(float(change.abs().max()) > 1e-3 for change in changes[0])


NUM_IMAGES, STEP_SIZE = 32, 4096


def gradients(precision: str) -> dict[str, Tensor]:
    tree = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1}
    sizes = {"batch_size": NUM_IMAGES, "accumulation_steps": STEP_SIZE // NUM_IMAGES}
    recipe = Recipe.model_validate({**tree, **sizes, "precision": precision})
    images = make_images(NUM_IMAGES, size=16)
    splits = Splits(images, images, images, *channel_statistics(images.pixels), 3, "s" * 16)
    set_seed(recipe, 0)
    model = build_model(recipe, splits, seed=0, device=CPU)
    stepper = Stepper(model.train(), model, recipe, device=CPU)
    found: dict[str, Tensor] = {}

    def keep(*_: object) -> None:
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            found[name.removeprefix("network.")] = parameter.grad.float()

    stepper.optimizer.register_step_pre_hook(keep)
    pixels = torch.from_numpy(images.pixels).permute(0, 3, 1, 2) / 255 - 0.5
    batch = (pixels.contiguous(memory_format=torch.channels_last), torch.from_numpy(images.labels))
    stepper.learn(Group(STEP_SIZE, [batch]), Shape(16, 16), frac=0.5)
    return found


def test_gradients_of_each_layer_are_near_those_of_fp32() -> None:
    exact, scaled = gradients("fp32"), gradients("half_fp32_norms")
    assert exact.keys() == scaled.keys() and len(exact) > 40
    off = {n: float((scaled[n] - exact[n]).norm() / exact[n].norm()) for n in exact}
    assert max(off.values()) < 0.25, max(off, key=lambda name: off[name])

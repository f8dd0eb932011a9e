"""A recorder of gradients by itself: what it leaves as it was, how many it makes and refuses."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from training import CPU, NUM_CLASSES, Tiny, make_recipe

from tune_speed.components.speedups.base import Shape
from tune_speed.training.step import gradient
from tune_speed.training.step.gradient import EagerGradient, RecordedGradient, sum_of_losses

SHAPE = Shape(6, 6)


def make_model(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    return Tiny(norm=norm).build(in_channels=1, num_classes=NUM_CLASSES, image_size=6)


def batch(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    images = torch.randn((count, 1, 6, 6), generator=torch.Generator().manual_seed(seed))
    return images, torch.arange(count) % NUM_CLASSES


def recorder(model: nn.Module, *, enabled: bool = False) -> RecordedGradient:
    recipe = make_recipe(cuda_graph=True)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=4.0)
    eager = EagerGradient(recipe, forward=model, scaler=scaler, device=CPU)
    return RecordedGradient(eager, model, scaler=scaler, device=CPU)


def add(recorded: RecordedGradient, count: int, *, divisor: float = 8.0, **shape: Any) -> Tensor:
    return recorded.add(*batch(count), divisor=divisor, shape=SHAPE._replace(**shape), frac=0.5)


def test_recorded_gradient_is_the_sum_over_the_micro_batches_of_a_step(
    recordings: list[Any],
) -> None:
    model, plain = make_model("none"), make_model("none")
    recorded = recorder(model)
    for _ in range(2):
        recorded.begin()
        losses = [float(add(recorded, count)) for count in (5, 3)]
    expected = [
        functional.cross_entropy(plain(images), labels, reduction="sum")
        for images, labels in (batch(5), batch(3))
    ]
    assert losses == pytest.approx([float(loss.detach()) for loss in expected])
    wanted = torch.autograd.grad(sum(expected) / 8.0, list(plain.parameters()))
    for parameter, exact in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, exact)
    # In the memory of the first.
    assert recordings == [None, "pool 1"]


def test_recording_leaves_statistics_and_random_numbers_as_they_were(
    recordings: list[Any],
) -> None:
    model, plain = make_model(), make_model()
    recorded = recorder(model)
    recorded.begin()
    torch.manual_seed(7)
    add(recorded, 8)
    plain(batch(8)[0])
    for ours, theirs in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    after = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(after, torch.rand(3))


def test_kind_is_the_images_shape_the_divisor_and_the_steps_shape(recordings: list[Any]) -> None:
    recorded = recorder(make_model())
    recorded.begin()
    for _ in range(2):
        add(recorded, 8)
        add(recorded, 6)
        add(recorded, 8, divisor=4.0)
        add(recorded, 8, stage=1)
    assert len(recordings) == 4


def test_sixteen_kinds_are_recorded_and_further_ones_are_launched(recordings: list[Any]) -> None:
    model, plain = make_model("none"), make_model("none")
    recorded = recorder(model)
    recorded.begin()
    for divisor in range(1, 19):
        add(recorded, 2, divisor=float(divisor))
    assert len(recordings) == 16
    images, labels = batch(2)
    loss = functional.cross_entropy(plain(images), labels, reduction="sum")
    loss = loss * sum(1 / divisor for divisor in range(1, 19))
    for parameter, exact in zip(
        model.parameters(), torch.autograd.grad(loss, list(plain.parameters())), strict=True
    ):
        torch.testing.assert_close(parameter.grad, exact, rtol=1e-4, atol=1e-6)


def test_weights_that_are_never_trained_have_no_buffer(recordings: list[Any]) -> None:
    model = make_model("none")
    model.conv.weight.requires_grad_(False)
    recorded = recorder(model)
    recorded.begin()
    add(recorded, 4)
    assert model.conv.weight.grad is None
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    held = model.classifier.bias.grad
    recorded.begin()
    assert model.classifier.bias.grad is held and not held.any()


@pytest.mark.parametrize(
    ("largest", "enabled", "is_refused"),
    [
        (0.0, False, True),
        (0.0, True, True),
        (1e-20, False, False),
        (2.0, False, False),
        (math.inf, False, True),
        (math.nan, False, True),
        # Under a loss scale a first overflow is usual.
        (math.inf, True, False),
    ],
)
def test_gradients_that_are_none_or_no_numbers_are_refused(
    recordings: list[Any], largest: float, enabled: bool, is_refused: bool
) -> None:
    model = make_model("none")
    # A parameter without elements has no largest one.
    model.empty = nn.Parameter(torch.zeros(0))
    recorded = recorder(model, enabled=enabled)
    recorded.begin()
    model.classifier.bias.grad[1] = -largest
    if not is_refused:
        recorded.refuse_nonsense()
        return
    with pytest.raises(RuntimeError, match=rf"the largest of them is {largest:g}\. Try cuda_graph"):
        recorded.refuse_nonsense()


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("fp32", torch.float32),
        ("half", torch.float32),
        ("half_fp32_norms", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ],
)
def test_only_mixed_precisions_cast_by_themselves(precision: str, expected: torch.dtype) -> None:
    seen = []

    def forward(images: Tensor) -> Tensor:
        seen.append(functional.linear(images.flatten(1), torch.ones((3, 36))))
        return seen[-1]

    recipe = make_recipe().model_copy(update={"precision": precision})
    loss = sum_of_losses(*batch(4), recipe, frac=1.0, forward=forward, device=CPU)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    eager = EagerGradient(recipe, forward=forward, scaler=scaler, device=CPU)
    # The losses by which samples are chosen are those of the step, one by one.
    each = eager._losses(*batch(4))
    assert [logits.dtype for logits in seen] == [expected] * 2
    assert each.shape == (4,) and not each.requires_grad
    assert float(each.sum()) == pytest.approx(float(loss), rel=1e-5)


def test_loss_is_scaled_before_it_is_differentiated() -> None:
    model, plain = make_model("none"), make_model("none")
    scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=4.0)
    eager = EagerGradient(make_recipe(), forward=model, scaler=scaler, device=CPU)
    eager.begin()
    images, labels = batch(6)
    found = eager.add(images, labels, divisor=6.0, shape=SHAPE, frac=1.0)
    loss = functional.cross_entropy(plain(images), labels, reduction="sum")
    assert not found.requires_grad and float(found) == pytest.approx(float(loss.detach()))
    for parameter, exact in zip(
        model.parameters(),
        torch.autograd.grad(4.0 * loss / 6, list(plain.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(parameter.grad, exact)


def test_whether_to_record_is_settled_before_a_step_is_taken(recordings: list[Any]) -> None:
    model = make_model()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    recipe = make_recipe().model_copy(update={"cuda_graph": "auto"})
    with pytest.raises(AssertionError, match="settled before"):
        gradient.gradient_of(recipe, model, forward=model, scaler=scaler, device=CPU)


def test_steps_are_recorded_on_cuda_alone() -> None:
    assert {"cuda": gradient.record_graph} == gradient.RECORDERS

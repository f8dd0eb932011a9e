from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tune_speed.components.models.networks.cifar import CifarSpeedNet
from tune_speed.training.build import Half

NORMS = {
    "batch": lambda: nn.BatchNorm2d(4),
    "group": lambda: nn.GroupNorm(2, 4),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True),
}


def network(norm: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), NORMS[norm](), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )


@pytest.mark.parametrize("norm", NORMS)
def test_only_norms_are_kept_in_fp32(norm: str) -> None:
    half = Half(network(norm), has_fp32_norms=True)
    types = {name: tensor.dtype for name, tensor in half.state_dict().items()}
    norms = {name for name in types if name.startswith("network.1.")}
    assert norms and all(types[name] in (torch.float32, torch.int64) for name in norms)
    assert all(types[name] is torch.float16 for name in set(types) - norms)
    logits = half(torch.rand(5, 3, 4, 4))
    assert logits.dtype is torch.float16
    logits.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype is p.dtype for p in half.parameters())


@pytest.mark.parametrize("norm", NORMS)
def test_values_whose_squares_overflow_fp16_are_normalised(norm: str) -> None:
    exact = network(norm)
    images = 3000 * torch.rand(5, 3, 4, 4)
    half = Half(network(norm), has_fp32_norms=True)
    features = half.network[1](half.network[0](images.half()))
    assert torch.allclose(features.float(), exact[1](exact[0](images)), atol=0.02)


def test_batch_statistics_are_those_of_fp32() -> None:
    half = Half(network("batch"), has_fp32_norms=True)
    images = torch.rand(64, 3, 4, 4)
    half(images)
    features = functional.conv2d(images, *(p.float() for p in half.network[0].parameters()))
    mean = 0.1 * features.mean(dim=(0, 2, 3))
    assert torch.allclose(half.network[1].running_mean, mean, atol=1e-3)


class Casts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.number += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("norm", "number"), [("batch", 0), ("group", 4)])
def test_values_go_through_a_batch_norm_and_back_without_a_cast(norm: str, number: int) -> None:
    half = Half(network(norm), has_fp32_norms=True)
    images = torch.rand(5, 3, 4, 4).half()
    with Casts() as casts:
        half(images).sum().backward()
    assert casts.number == number


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("is_training", [True, False])
def test_a_batch_norm_is_that_of_fp32_rounded(memory_format, is_training):
    exact = network("batch")[1].train(is_training)
    norm = Half(network("batch"), has_fp32_norms=True).network[1].train(is_training)
    features = (300 * torch.randn(8, 4, 5, 5)).half().to(memory_format=memory_format)
    weights = torch.randn_like(features)
    ours = passed(norm, features, weights, lambda out: out)
    theirs = passed(exact, features.float(), weights, lambda out: out.half())
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.float(), other.float(), rtol=1e-3, atol=1e-3)


def passed(
    norm: nn.Module, features: Tensor, weights: Tensor, cast: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    leaf = features.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    outputs = cast(norm(leaf))
    outputs.backward(weights)
    gradients = [p.grad for p in (leaf, *norm.parameters()) if p.grad is not None]
    assert len(gradients) == 3
    return [outputs.detach(), *gradients, *norm.buffers()]


def test_without_them_all_is_fp16() -> None:
    half = Half(network("batch"))
    floating = [t for t in half.state_dict().values() if t.is_floating_point()]
    assert all(tensor.dtype is torch.float16 for tensor in floating)


@pytest.mark.slow
def test_compiled_network_has_the_gradients_of_the_launched_one_in_half_precision() -> None:
    torch.manual_seed(0)
    network = CifarSpeedNet(
        in_channels=3,
        num_classes=10,
        widths=(8, 16, 16),
        logit_scale=1 / 9,
        norm_eps=1e-12,
        norm_momentum=0.4,
    )
    model = Half(network, has_fp32_norms=True).to(memory_format=torch.channels_last).train()
    images = torch.randn(64, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.arange(64) % 10
    found = []
    for forward in (model, torch.compile(model, dynamic=False)):
        model.zero_grad()
        functional.cross_entropy(forward(images).float(), labels, reduction="sum").backward()
        found.append([p.grad.float() for p in model.parameters() if p.grad is not None])
    for ours, theirs in zip(*found, strict=True):
        assert float((ours - theirs).norm()) <= 0.05 * float(ours.norm())

"""The speed-run's network: what it is as one graph."""

import pytest
import torch
from torch.nn import functional

from tune_speed.components.models.networks.cifar import CifarSpeedNet
from tune_speed.training.build import Half


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

import copy
from typing import Any

import pytest
import timm
import torch
import torchvision
from timm.models import group_parameters
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

from tune_speed.components.models.cifar import ResNet
from tune_speed.components.models.networks.layers import (
    checkpoint_layers,
    mark_frozen,
    rate_factors,
    set_frozen,
)
from tune_speed.core.errors import ConfigError

IMAGES = torch.randn((4, 3, 32, 32), generator=torch.Generator().manual_seed(1))


def cifar_net() -> nn.Module:
    return ResNet(depth=8).network(in_channels=3, num_classes=4, image_size=8)


def vit(**fields: Any) -> nn.Module:
    model: nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, num_classes=3, **fields
    )
    return model


def factors_of(model: nn.Module, decay: float) -> dict[str, float]:
    found = rate_factors(model, decay, 1.0)
    return {name: found[id(p)] for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "efficientnet_b0"])
def test_factors_are_those_of_timm_for_its_networks(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=5)
    groups = param_groups_layer_decay(model, layer_decay=0.7)
    judge = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    assert rate_factors(model, 0.7, 1.0) == pytest.approx(judge)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_layers_of_torchvision_are_the_groups_of_the_same_network_in_timm(name: str) -> None:
    with torch.device("meta"):
        ours, theirs = torchvision.models.get_model(name), timm.create_model(name)
    groups = group_parameters(theirs, theirs.group_matcher(coarse=False), reverse=True)
    last = max(groups.values())
    assert factors_of(ours, 0.5) == {n: 0.5 ** (last - layer) for n, layer in groups.items()}


def test_an_encoder_that_is_most_of_a_transformer_is_taken_apart() -> None:
    with torch.device("meta"):
        factors = factors_of(torchvision.models.vit_b_16(), 0.5)
    for first in ("conv_proj.weight", "class_token", "encoder.pos_embedding"):
        assert factors[first] == 0.5**13
    blocks = [factors[f"encoder.layers.encoder_layer_{n}.mlp.0.weight"] for n in range(12)]
    assert blocks == [0.5 ** (12 - n) for n in range(12)]
    assert (factors["encoder.ln.weight"], factors["heads.head.weight"]) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("act", "path"),
    [
        (lambda model: rate_factors(model, 0.5, 1.0), "layer_decay"),
        (checkpoint_layers, "activation_checkpointing"),
        (lambda model: mark_frozen(model, "head"), "freeze.until"),
        (lambda model: mark_frozen(model, "1"), "freeze.until"),
    ],
)
def test_a_network_of_one_layer_is_refused(act: Any, path: str) -> None:
    with pytest.raises(ConfigError) as error:
        act(nn.Sequential(nn.Linear(3, 2)))
    assert error.value.problems[0].path == path


def frozen_of(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters() if not p.requires_grad}


def saved_bytes(model: nn.Module) -> int:
    sizes = dict[int, int]()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(IMAGES).sum().backward()
    return sum(sizes.values())


def test_frozen_layers_keep_weights_and_statistics_and_take_less_memory() -> None:
    model = cifar_net()
    whole = saved_bytes(model)
    mark_frozen(model, "blocks.1")
    before = copy.deepcopy(model.state_dict())
    model.eval().train()
    set_frozen(model, is_frozen=True)
    assert saved_bytes(model) < 0.6 * whole
    moved = {n for n, tensor in model.state_dict().items() if not torch.equal(tensor, before[n])}
    assert moved and all(name.startswith(("blocks.1", "blocks.2")) for name in moved)
    frozen = frozen_of(model)
    trained = ("blocks.1", "blocks.2", "classifier")
    assert frozen == {n for n, _ in model.named_parameters() if not n.startswith(trained)}
    set_frozen(model, is_frozen=False)
    assert all(module.training for module in model.modules()) and not frozen_of(model)


def learned(model: nn.Module) -> dict[str, Tensor]:
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(IMAGES).square().mean().backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(
    "make",
    [
        cifar_net,
        lambda: timm.create_model("resnet10t", num_classes=3, drop_path_rate=0.5),
        lambda: vit(drop_rate=0.3),
        lambda: torchvision.models.mobilenet_v3_small(num_classes=3),
    ],
    ids=["ours", "timm", "transformer", "torchvision"],
)
def test_activations_that_are_computed_again_change_no_bit_and_take_less_memory(make: Any) -> None:
    plain = make()
    checkpointed = copy.deepcopy(plain)
    checkpoint_layers(checkpointed)
    assert saved_bytes(copy.deepcopy(checkpointed)) < saved_bytes(copy.deepcopy(plain))
    expected = learned(plain)
    for name, tensor in learned(checkpointed).items():
        assert torch.equal(tensor, expected[name]), name


def test_timm_agrees_where_no_statistics_are_kept() -> None:
    ours = vit()
    theirs = copy.deepcopy(ours)
    checkpoint_layers(ours)
    theirs.set_grad_checkpointing(True)
    expected = learned(theirs)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in learned(ours).items())

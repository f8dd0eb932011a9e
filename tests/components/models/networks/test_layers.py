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
    take_heads,
)
from tune_speed.components.speedups.modules.heads import heads_of
from tune_speed.core.errors import ConfigError


def factors_of(model: nn.Module, *, decay: float | None = 0.5, head: float = 1.0) -> dict[str, Any]:
    found = rate_factors(model, layer_decay=decay, head_lr_scale=head)
    return {name: found[id(p)] for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "vit_tiny_patch16_224",
        "efficientnet_b0",
        "convnext_atto",
        "mobilenetv3_small_050",
    ],
)
def test_factors_are_those_of_timm_for_its_networks(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=5)
    names = {id(p): name for name, p in model.named_parameters()}
    judge = {
        names[id(p)]: group["lr_scale"]
        for group in param_groups_layer_decay(model, layer_decay=0.7)
        for p in group["params"]
    }
    assert factors_of(model, decay=0.7) == pytest.approx(judge)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_layers_of_torchvision_are_the_groups_of_the_same_network_in_timm(name: str) -> None:
    with torch.device("meta"):
        ours, theirs = torchvision.models.get_model(name), timm.create_model(name)
    groups = group_parameters(theirs, theirs.group_matcher(coarse=False), reverse=True)
    last = max(groups.values())
    assert factors_of(ours) == {name: 0.5 ** (last - layer) for name, layer in groups.items()}


def test_an_encoder_that_is_most_of_a_transformer_is_taken_apart() -> None:
    with torch.device("meta"):
        factors = factors_of(torchvision.models.vit_b_16())
    # The patches with token and positions, twelve blocks, and the head.
    first, last = 0.5**13, 1.0
    assert {factors[n] for n in ("conv_proj.weight", "class_token", "encoder.pos_embedding")} == {
        first
    }
    blocks = "encoder.layers.encoder_layer_{}.mlp.0.weight"
    assert [factors[blocks.format(n)] for n in range(12)] == [0.5 ** (12 - n) for n in range(12)]
    assert factors["encoder.ln.weight"] == factors[blocks.format(11)]
    assert factors["heads.head.weight"] == last


def cifar_net(depth: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return ResNet(depth=depth).network(in_channels=3, num_classes=4, image_size=8)


def test_layers_of_our_networks_are_their_blocks() -> None:
    factors = factors_of(cifar_net())
    # Stem, three blocks, and the head.
    assert sorted(set(factors.values())) == [0.5**n for n in (4, 3, 2, 1, 0)]


def test_the_head_has_a_factor_of_its_own() -> None:
    model = cifar_net()
    (head,) = (f"{name}.weight" for name, _ in heads_of(model))
    factors = factors_of(model, decay=None, head=10.0)
    assert {name for name, factor in factors.items() if factor == 10.0} == {
        head,
        head.replace("weight", "bias"),
    }
    assert set(factors.values()) == {1.0, 10.0}
    assert factors_of(model, decay=0.5, head=10.0)[head] == 10.0


def test_a_network_of_one_layer_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        rate_factors(nn.Sequential(nn.Linear(3, 2)), layer_decay=0.5, head_lr_scale=1.0)
    assert error.value.problems[0].path == "layer_decay"


def frozen_of(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters() if not p.requires_grad}


def saved_bytes(model: nn.Module, images: Tensor) -> int:
    sizes = dict[int, int]()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(images).sum().backward()
    model.zero_grad(set_to_none=True)
    return sum(sizes.values())


IMAGES = torch.randn((4, 3, 8, 8), generator=torch.Generator().manual_seed(1))


def test_frozen_layers_keep_weights_and_statistics_and_take_less_memory() -> None:
    model = cifar_net()
    whole = saved_bytes(model, IMAGES)
    mark_frozen(model, "blocks.1")
    before = copy.deepcopy(model.state_dict())
    set_frozen(model, is_frozen=True)
    # Weights, which count too, are 310 kB.
    assert saved_bytes(model, IMAGES) < 0.8 * whole
    moved = {n for n, tensor in model.state_dict().items() if not torch.equal(tensor, before[n])}
    assert moved and all(name.startswith(("blocks.1", "blocks.2")) for name in moved)
    assert not any(name.startswith(("blocks.1", "blocks.2")) for name in frozen_of(model))
    assert all(name in frozen_of(model) for name in before if name.startswith("blocks.0.conv"))


def test_an_evaluation_in_between_leaves_frozen_layers_in_evaluation_mode() -> None:
    model = cifar_net()
    mark_frozen(model, "head")
    set_frozen(model, is_frozen=True)
    model.eval()
    model.train()
    set_frozen(model, is_frozen=True)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and not any(norm.training for norm in norms)
    set_frozen(model, is_frozen=False)
    assert all(module.training for module in model.modules())
    assert not frozen_of(model)


def test_until_the_head_all_but_the_head_is_frozen() -> None:
    for model in (cifar_net(), timm.create_model("vit_tiny_patch16_224", num_classes=3)):
        mark_frozen(model, "head")
        set_frozen(model, is_frozen=True)
        heads = {
            f"{name}.{p}" for name, head in heads_of(model) for p in dict(head.named_parameters())
        }
        assert frozen_of(model) == {name for name, _ in model.named_parameters()} - heads


@pytest.mark.parametrize("until", ["blokcs.1", "", "stem"])
def test_until_must_be_a_module_that_others_come_before(until: str) -> None:
    model = nn.Sequential()
    model.add_module("stem", nn.Conv2d(3, 4, 3))
    model.add_module("blocks", nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)))
    with pytest.raises(ConfigError) as error:
        mark_frozen(model, until)
    (problem,) = error.value.problems
    assert problem.path == "freeze.until"
    assert until != "blokcs.1" or "`blocks.1`" in str(problem.hint)


def test_heads_are_taken_from_the_fresh_network_alone() -> None:
    model, fresh = cifar_net(), ResNet(depth=8).network(in_channels=3, num_classes=4, image_size=8)
    before = copy.deepcopy(model.state_dict())
    take_heads(model, fresh)
    ((head, _),) = heads_of(model)
    for name, tensor in model.state_dict().items():
        expected = fresh.state_dict() if name.startswith(head) else before
        assert torch.equal(tensor, expected[name])
    assert not torch.equal(model.state_dict()[f"{head}.weight"], before[f"{head}.weight"])


def learned(model: nn.Module, *, steps: int = 2) -> dict[str, Tensor]:
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    size = 32 if not hasattr(model, "blocks") or hasattr(model, "pretrained_cfg") else 8
    images = torch.randn((4, 3, size, size), generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(
    "make",
    [
        cifar_net,
        lambda: timm.create_model("resnet10t", num_classes=3, drop_path_rate=0.5),
        lambda: timm.create_model(
            "vit_tiny_patch16_224", img_size=32, num_classes=3, drop_rate=0.3
        ),
        lambda: torchvision.models.mobilenet_v3_small(num_classes=3),
    ],
    ids=["ours", "timm", "transformer", "torchvision"],
)
def test_activations_that_are_computed_again_change_no_bit_and_take_less_memory(make: Any) -> None:
    torch.manual_seed(0)
    plain = make()
    checkpointed = copy.deepcopy(plain)
    checkpoint_layers(checkpointed)
    size = 32 if hasattr(plain, "default_cfg") or hasattr(plain, "classifier") else 8
    images = torch.zeros((8, 3, size, size))
    copies = copy.deepcopy(plain), copy.deepcopy(checkpointed)
    assert saved_bytes(copies[1], images) < saved_bytes(copies[0], images)
    expected = learned(plain)
    for name, tensor in learned(checkpointed).items():
        assert torch.equal(tensor, expected[name]), name


def test_timm_agrees_where_no_statistics_are_kept() -> None:
    torch.manual_seed(0)
    ours = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3)
    theirs = copy.deepcopy(ours)
    checkpoint_layers(ours)
    theirs.set_grad_checkpointing(True)
    expected = learned(theirs)
    for name, tensor in learned(ours).items():
        assert torch.equal(tensor, expected[name]), name


def test_a_network_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        checkpoint_layers(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(3, 2)))
    assert error.value.problems[0].path == "activation_checkpointing"

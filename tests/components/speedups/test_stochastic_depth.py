import copy
import math
from functools import cache

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional

from tune_speed.components.models import MODELS
from tune_speed.components.models.libraries import Timm
from tune_speed.components.speedups.modules.heads import active_dropouts
from tune_speed.components.speedups.modules.residual import draws_of, find_blocks, find_skipping
from tune_speed.components.speedups.network import DropoutRemoval, StochasticDepth
from tune_speed.core.errors import ConfigError

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class LinearBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.calls = 0

    def forward(self, features):
        return self.join(self.branch(features), self.shortcut(features))

    def branch(self, features):
        self.calls += 1
        return self.layer(features)

    def shortcut(self, features):
        return features

    def join(self, branch, shortcut):
        return branch + shortcut


def linear_net(num_blocks, width=3):
    torch.manual_seed(0)
    return nn.Sequential(*(LinearBlock(width) for _ in range(num_blocks)), nn.Linear(width, 2))


def resnet20(name="resnet20"):
    torch.manual_seed(0)
    return MODELS[name]().build(in_channels=3, num_classes=10, image_size=8)


def skipping_net(model, seed=0, **fields):
    config = StochasticDepth(**fields)
    config.check_model(model)
    return config.change_model(model, num_classes=10, seed=seed)


def gates_of(model, num_draws):
    for _ in range(num_draws):
        model(torch.zeros(1, 3))
    return [skipping.executions for skipping in find_skipping(model)]


def test_linear_survivals_are_those_of_the_paper():
    survivals = StochasticDepth(survival=0.5, rule="linear").survivals(9)
    assert survivals[0] == pytest.approx(1 - 0.0556, abs=1e-4)
    assert survivals[-1] == 0.5
    assert sum(survivals) == pytest.approx(6.5)
    assert sum(StochasticDepth(survival=0.5).survivals(54)) == pytest.approx(40.25)
    assert StochasticDepth(survival=0.3, rule="uniform").survivals(2) == (0.3, 0.3)


@pytest.mark.parametrize(("rule", "depth"), [("linear", 6.5), ("uniform", 4.5)])
def test_blocks_are_executed_as_often_as_their_survivals_say(rule, depth):
    num_draws = 2500
    model = skipping_net(linear_net(9), survival=0.5, rule=rule).train()
    with torch.no_grad():
        counts = gates_of(model, num_draws)
    for count, p in zip(counts, StochasticDepth(rule=rule).survivals(9), strict=True):
        assert abs(count / num_draws - p) < 4 * math.sqrt(p * (1 - p) / num_draws)
    # The variance of a sum of independent draws is at most a quarter each.
    assert abs(sum(counts) / num_draws - depth) < 4 * math.sqrt(9 / 4 / num_draws)


@pytest.mark.parametrize("name", ["resnet20", "preact_resnet"])
def test_certain_survival_is_the_plain_network_bit_for_bit(name):
    plain, model = resnet20(name), skipping_net(resnet20(name), survival=1.0)
    for net in (plain, model):
        net.train()(IMAGES).square().sum().backward()
    gradients = [[p.grad for p in net.parameters()] for net in (plain, model)]
    assert all(map(torch.equal, *gradients))
    assert all(map(torch.equal, plain.state_dict().values(), model.state_dict().values()))
    assert torch.equal(plain.eval()(IMAGES), model.eval()(IMAGES))


def test_without_survival_no_branch_is_computed():
    net = resnet20()
    model = skipping_net(copy.deepcopy(net), survival=0.5)
    for skipping in find_skipping(model):
        skipping.survival = 0.0
        skipping.module.branch = None  # whoever computes it fails
    output = model.train()(IMAGES)
    features = functional.relu(net.norm(net.conv(IMAGES)))
    for block in net.blocks:
        features = functional.relu(block.shortcut(features))
    assert torch.equal(output, net.classifier(features.mean(dim=(2, 3))))


def test_a_skipped_block_is_not_called_and_an_executed_one_once():
    model = skipping_net(linear_net(4), survival=0.5, rule="uniform").train()
    gates = gates_of(model, 50)
    assert [block.calls for block in list(model)[:4]] == gates
    assert min(gates) > 0 and max(gates) < 50


def test_mean_over_draws_of_a_linear_network_is_its_output_in_evaluation():
    model = skipping_net(linear_net(2), survival=0.4)
    inputs = torch.randn(1, 3)
    with torch.no_grad():
        draws = torch.cat([model.train()(inputs) for _ in range(4000)])
        expected = model.eval()(inputs)[0]
    error = draws.std(dim=0) / math.sqrt(len(draws))
    assert ((draws.mean(dim=0) - expected).abs() < 4 * error).all()


def test_exact_expectation_over_all_gates_is_the_output_in_evaluation():
    first, second, _ = linear_net(2)
    inputs, p, q = torch.randn(5, 3), *StochasticDepth(survival=0.4).survivals(2)
    outputs = inputs + p * first.layer(inputs)
    outputs = outputs + q * second.layer(outputs)
    model = skipping_net(nn.Sequential(first, second), survival=0.4).eval()
    torch.testing.assert_close(model(inputs), outputs)


def test_skipped_blocks_get_no_gradient_and_the_optimizer_leaves_them_alone():
    model = skipping_net(resnet20(), survival=0.5, rule="uniform").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        before = [skipping.executions for skipping in find_skipping(model)]
        weights = copy.deepcopy(model.state_dict())
        optimizer.zero_grad(set_to_none=True)
        model(IMAGES).square().mean().backward()
        optimizer.step()
        for number, skipping in enumerate(find_skipping(model)):
            was_skipped = skipping.executions == before[number]
            assert all((p.grad is None) == was_skipped for p in skipping.module.parameters())
            names = [name for name in weights if name.startswith(f"blocks.{number}.")]
            same = [torch.equal(model.state_dict()[name], weights[name]) for name in names]
            assert all(same) if was_skipped else not any(same)


def test_draws_depend_on_the_seed_alone_and_can_begin_again():
    first, second = (skipping_net(linear_net(9), seed=7).train() for _ in range(2))
    torch.manual_seed(1)
    gates = gates_of(first, 20)
    torch.manual_seed(2)
    assert gates_of(second, 20) == gates
    draws_of(second).manual_seed(7)
    again = [now - then for now, then in zip(gates_of(second, 20), gates, strict=True)]
    assert again == gates
    assert gates_of(skipping_net(linear_net(9), seed=8).train(), 20) != gates


def test_parameters_keep_their_names_and_copies_are_of_their_own():
    plain, model = resnet20(), skipping_net(resnet20(), survival=0.9)
    assert list(model.state_dict()) == list(plain.state_dict())
    twin = copy.deepcopy(model).eval()
    before = twin(IMAGES)
    nn.init.zeros_(model.blocks[0].norm2.weight)
    assert torch.equal(twin(IMAGES), before)
    assert [s.module for s in find_skipping(twin)] == list(twin.blocks)


@pytest.mark.parametrize(
    ("make", "num_blocks"),
    [
        (lambda: torchvision.models.resnet18(num_classes=10), 8),
        (lambda: torchvision.models.resnet50(num_classes=10), 16),
        (lambda: timm.create_model("resnet18", num_classes=10), 8),
        (lambda: timm.create_model("resnet50", num_classes=10), 16),
    ],
)
def test_resnets_of_the_libraries_can_be_skipped(make, num_blocks):
    with torch.device("meta"):
        model = skipping_net(make(), survival=0.5, rule="uniform").train()
        model(torch.zeros(2, 3, 32, 32))
    executed = [skipping.executions for skipping in find_skipping(model)]
    assert len(executed) == num_blocks
    assert 0 < sum(executed) < num_blocks


@pytest.mark.parametrize("name", ["vgg11", "efficientnet_b0", "densenet121"])
def test_networks_without_known_blocks_are_refused(name):
    with torch.device("meta"):
        model = torchvision.models.get_model(name)
    with pytest.raises(ConfigError, match=r"depth\.stochastic_depth:"):
        StochasticDepth().check_model(model)


class Recipe:
    compile = True
    model = Timm(name="resnet18", drop_path_rate=0.1)


def test_compilation_and_the_models_own_stochastic_depth_are_refused():
    problems = list(StochasticDepth().refusals(Recipe()))
    assert [problem.path for problem in problems] == ["compile", "model"]
    assert "drop_path_rate" in str(problems[1])


@pytest.mark.parametrize("survival", [0.0, 1.1])
def test_impossible_probabilities_are_refused(survival):
    with pytest.raises(ValueError, match="survival"):
        StochasticDepth(survival=survival)


MAKERS = {
    "torchvision resnet18": lambda: torchvision.models.resnet18(num_classes=2),
    "torchvision resnext50": lambda: torchvision.models.resnext50_32x4d(num_classes=2),
    "timm resnet18": lambda: timm.create_model("resnet18", num_classes=2),
    # Blur pooling inside of blocks, and squeeze-and-excitation at the end of branches.
    "timm resnetblur18": lambda: timm.create_model("resnetblur18", num_classes=2),
    "timm seresnet50": lambda: timm.create_model("seresnet50", num_classes=2),
    "resnet20": lambda: ours("resnet20"),
    "preact_resnet": lambda: ours("preact_resnet"),
}


def ours(name):
    return MODELS[name]().network(in_channels=3, num_classes=2, image_size=8)


@cache
def blocks_of(name):
    torch.manual_seed(0)
    return find_blocks(MAKERS[name]())


@pytest.mark.parametrize("name", MAKERS)
def test_parts_make_up_the_whole_block(name):
    blocks = blocks_of(name)
    assert len(blocks) >= 8
    for module, parts in (blocks[0], blocks[-1]):
        # The first norm scales by 0 in some networks, which would hide the branch.
        for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
            nn.init.uniform_(norm.weight)
        conv = next(m for m in module.modules() if isinstance(m, nn.Conv2d))
        features = torch.randn(2, conv.in_channels, 8, 8)
        module.eval()
        whole = module(features)
        assert torch.equal(parts.join(parts.branch(features), parts.shortcut(features)), whole)


@pytest.mark.parametrize("name", MAKERS)
def test_joining_nothing_makes_a_new_tensor(name):
    module, parts = blocks_of(name)[0]
    conv = next(m for m in module.modules() if isinstance(m, nn.Conv2d))
    shortcut = parts.shortcut(torch.randn(2, conv.in_channels, 8, 8)).detach()
    before = shortcut.clone()
    joined = parts.join(torch.zeros(()), shortcut)
    assert torch.equal(shortcut, before)
    # Pre-activation blocks have no ReLU after the sum.
    assert torch.equal(joined, before if name == "preact_resnet" else before.relu())


def every_kind():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.Dropout2d(0.3),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8 * 36, 16),
        nn.AlphaDropout(0.2),
        nn.TransformerEncoderLayer(16, 2, dropout=0.4),
        torchvision.ops.StochasticDepth(0.5, "row"),
    )


def without_dropout(model, **fields):
    config = DropoutRemoval(**fields)
    config.check_model(model)
    return config.change_model(model, num_classes=10, seed=0)


def is_noisy(model, size=8):
    model.train()
    images = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    return not torch.equal(model(images), model(images))


def test_two_passes_in_training_agree_bit_for_bit_once_dropout_is_removed():
    assert is_noisy(every_kind())
    model = without_dropout(every_kind(), include_stochastic_depth=True)
    assert not is_noisy(model)
    assert active_dropouts(model, stochastic_depth=True) == []


def test_stochastic_depth_stays_unless_asked_for():
    model = without_dropout(every_kind())
    left = active_dropouts(model, stochastic_depth=True)
    assert [type(module).__name__ for module, _ in left] == ["StochasticDepth"]
    assert active_dropouts(model, stochastic_depth=False) == []
    assert is_noisy(model)


def group_norm(num_channels, **_):
    return nn.GroupNorm(1, num_channels)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: torchvision.models.squeezenet1_1(), 64),
        (lambda: timm.create_model("test_vit", drop_rate=0.2, attn_drop_rate=0.1), 160),
        # Its forward passes `drop_rate` on to a function: no module drops.
        (lambda: timm.create_model("test_resnet", drop_rate=0.2, norm_layer=group_norm), 64),
    ],
)
def test_networks_of_the_libraries_lose_their_noise(make, size):
    torch.manual_seed(0)
    assert is_noisy(make(), size)
    assert not is_noisy(without_dropout(make()), size)


def test_rates_that_a_forward_passes_on_are_found_in_densenets():
    with torch.device("meta"):
        model = without_dropout(torchvision.models.densenet121(drop_rate=0.2))
    assert model.features.denseblock1.denselayer1.drop_rate == 0.0


@pytest.mark.parametrize(
    ("name", "num_dropouts", "num_paths"),
    # EfficientNet-B0: one before the classifier, and all of its 16 blocks but the first.
    [("efficientnet_b0", 1, 15), ("mobilenet_v2", 1, 0), ("vgg11", 2, 0), ("alexnet", 2, 0)],
)
def test_torchvisions_defaults_are_found(name, num_dropouts, num_paths):
    with torch.device("meta"):
        model = torchvision.models.get_model(name)
    assert len(active_dropouts(model, stochastic_depth=False)) == num_dropouts
    assert len(active_dropouts(model, stochastic_depth=True)) == num_dropouts + num_paths


def test_a_network_that_drops_nothing_is_refused():
    with torch.device("meta"):
        model = timm.create_model("resnet18")
    with pytest.raises(ConfigError, match=r"dropout\.dropout_removal:"):
        DropoutRemoval().check_model(model)

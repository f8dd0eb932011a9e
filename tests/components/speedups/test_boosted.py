import copy
import math

import pytest
import torch
from helpers.training.tiny import make_recipe
from torch import nn
from torch.nn import functional

from tune_speed.components.models import MODELS
from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.models.libraries import Timm
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.components.speedups.base import Shape
from tune_speed.components.speedups.modules.losses import sum_of_exponential_losses
from tune_speed.components.speedups.modules.residual import Staged, set_stage
from tune_speed.components.speedups.network import Boosted
from tune_speed.core.errors import ConfigError
from tune_speed.training.step.step import Group, Stepper

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(8, 3, 8, 8, generator=GENERATOR)
LABELS = torch.randint(10, (8,), generator=GENERATOR)


def staged_resnet20(name="resnet20", **fields):
    torch.manual_seed(0)
    config = Boosted(**fields)
    net = MODELS[name]().build(in_channels=3, num_classes=10, image_size=8)
    config.check_model(net)
    return config, config.change_model(net, num_classes=10, seed=0).train()


def train_step(config, model, stage, optimizer):
    config.begin_step(model, Shape(8, 8, stage=stage))
    logits = model(IMAGES)
    loss = config.sum_of_losses(logits, LABELS, frac=0.1, label_smoothing=0.0)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()


def changed_names(before, model):
    after = model.state_dict()
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_stages_have_equal_shares_and_then_comes_the_whole_network():
    config = Boosted(stages=4, refine_frac=0.2)
    stages = [config.shape(Shape(8, 8), frac=step / 100).stage for step in range(100)]
    assert stages == [0] * 20 + [1] * 20 + [2] * 20 + [3] * 20 + [4] * 20
    whole = Boosted(stages=3, refine_frac=0.0)
    assert whole.shape(Shape(8, 8), frac=math.nextafter(1, 0)).stage == 2


ENDS = {
    "resnet20": (("net.conv.", "net.norm."), ("net.classifier.",)),
    "preact_resnet": (("net.conv.", "net.first_norm."), ("net.last_norm.", "net.classifier.")),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_stage_changes_its_blocks_and_its_head_alone(name):
    config, model = staged_resnet20(name, stages=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=0.1)
    stem, head = ENDS[name]
    trained = ((*stem, "heads.0."), ("heads.1.",), head)
    for stage, prefixes in enumerate(trained):
        prefixes += tuple(f"net.blocks.{3 * stage + number}." for number in range(3))
        before = copy.deepcopy(model.state_dict())
        train_step(config, model, stage, optimizer)
        # An evaluation in between must not wake the frozen batch norms.
        model.eval()(IMAGES)
        model.train()
        train_step(config, model, stage, optimizer)
        changed = changed_names(before, model)
        assert {name for name in before if name.startswith(prefixes)} == changed


def test_the_last_stage_trains_the_whole_network_by_cross_entropy():
    config, model = staged_resnet20(stages=3, refine_frac=0.2)
    config.begin_step(model, Shape(8, 8, stage=3))
    assert config.sum_of_losses(model(IMAGES), LABELS, frac=0.81, label_smoothing=0.0) is None
    model(IMAGES).sum().backward()
    without = {name for name, p in model.named_parameters() if p.grad is None}
    assert without == {f"heads.{n}.{part}" for n in range(2) for part in ("weight", "bias")}
    net = copy.deepcopy(model.net).eval()
    assert torch.equal(model.eval()(IMAGES), net(IMAGES))


def test_evaluation_at_a_stage_is_its_head_on_the_blocks_so_far():
    config, model = staged_resnet20(stages=3)
    config.begin_step(model, Shape(8, 8, stage=1))
    net = model.eval().net
    features = net.stem(IMAGES)
    for block in net.blocks[:6]:
        features = block(features)
    expected = functional.linear(features.mean((2, 3)), model.heads[1].weight, model.heads[1].bias)
    assert torch.equal(model(IMAGES), expected)
    assert [head.in_features for head in model.heads] == [16, 32]


def test_backward_pass_does_not_grow_with_the_stage():
    config, model = staged_resnet20(stages=9)
    counts = []
    for stage in range(1, 9):
        config.begin_step(model, Shape(8, 8, stage=stage))
        nodes, pending = set(), [model(IMAGES).grad_fn]
        while pending:
            node = pending.pop()
            if node is not None and node not in nodes:
                nodes.add(node)
                pending += [parent for parent, _ in node.next_functions]
        counts.append(sum("Convolution" in node.name() for node in nodes))
    assert counts == [2] * 8


def test_copies_are_evaluated_at_the_stage_of_the_network_in_training():
    config, model = staged_resnet20(stages=3)
    average = copy.deepcopy(model).eval()
    config.begin_step(model, Shape(8, 8, stage=2))
    assert torch.equal(average(IMAGES), model.eval()(IMAGES))
    nn.init.zeros_(model.net.classifier.weight)
    assert not torch.equal(average(IMAGES), model(IMAGES))


def test_every_stage_learns():
    config, model = staged_resnet20(stages=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for stage in range(3):
        losses = [train_step(config, model, stage, optimizer) for _ in range(25)]
        assert losses[-1] < 0.7 * losses[0] or losses[-1] < 0.2 * len(IMAGES)


def test_exponential_loss_is_that_of_adaboost_up_to_a_constant():
    logits = torch.randn(8, 10, generator=GENERATOR, dtype=torch.float64)
    wrong = functional.one_hot(LABELS, 10) == 0
    margins = logits - logits.gather(1, LABELS[:, None])
    expected = (margins.exp()[wrong].sum() + 8) / 10
    loss = sum_of_exponential_losses(logits, LABELS, max_weight=1e6, label_smoothing=0.0)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(("logit", "weight"), [(0.0, 1.0), (-20.0, 4.0)])
def test_a_samples_weight_begins_at_one_and_is_bounded(logit, weight):
    logits = torch.zeros(1, 10)
    logits[0, 0] = logit
    first, second = (logits.clone().requires_grad_() for _ in range(2))
    label = torch.tensor([0])
    sum_of_exponential_losses(first, label, max_weight=4.0, label_smoothing=0.0).backward()
    functional.cross_entropy(second, label).backward()
    torch.testing.assert_close(first.grad, weight * second.grad)


def test_networks_that_are_no_stem_blocks_and_head_are_refused():
    for name in ("resnet18", "mixer_s32_224"):
        with torch.device("meta"):
            net = Timm(name=name).network(in_channels=3, num_classes=10, image_size=224)
        with pytest.raises(ConfigError, match=r"depth\.boosted:"):
            Boosted().check_model(net)


def test_more_stages_than_blocks_are_refused():
    with pytest.raises(ConfigError, match=r"depth\.boosted: .* 9, .*=10"):
        staged_resnet20(stages=10)


class Compiled:
    compile = True


def test_compilation_is_refused():
    assert [problem.path for problem in Boosted().refusals(Compiled())] == ["compile"]


def test_wrapped_networks_are_found():
    config, model = staged_resnet20(stages=2)
    wrapper = nn.Sequential(model)
    config.begin_step(wrapper, Shape(8, 8, stage=1))
    assert isinstance(wrapper[0], Staged) and model.place.stage == 1
    assert not model.net.norm.training and model.net.blocks[8].norm1.training


def test_refinement_begins_with_momentum_zero():
    recipe = make_recipe(
        model=ResNet20(),
        optimizer=Sgd(lr=0.1),
        speedups={"depth": {"boosted": {"stages": 2}}},
    )
    _, model = staged_resnet20(stages=2)
    stepper = Stepper(model, model, recipe, device=torch.device("cpu"))

    def step(stage):
        stepper.take(Group(len(LABELS), [(IMAGES, LABELS)]), Shape(8, 8, stage=stage), frac=0.9)

    for stage in (0, 0, 1):
        step(stage)
    saved = copy.deepcopy(stepper.optimizer.state_dict())
    before = model.net.conv.weight.detach().clone()
    fresh = copy.deepcopy(model)
    step(2)
    set_stage(fresh, 2)
    # Both are in one place, so that the stage is not news to this one.
    fresh.train()
    plain = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    functional.cross_entropy(fresh(IMAGES), LABELS).backward()
    plain.step()
    assert not torch.equal(model.net.conv.weight, before)
    torch.testing.assert_close(model.net.conv.weight, fresh.net.conv.weight)
    # A run that is resumed there begins it as well.
    assert {group["stage"] for group in saved["param_groups"]} == {1}

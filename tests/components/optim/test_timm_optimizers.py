from pathlib import Path
from typing import Any

import pytest
import timm.optim
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from tune_speed.components.optim.base import set_rates
from tune_speed.components.optim.libraries import RECORDED, TimmOptimizer
from tune_speed.components.schedules.base import Factors
from tune_speed.core.errors import ConfigError
from tune_speed.study.file import load_study

OTHERS = timm.optim.list_optimizers(["bnb*", "fused*", "adahessian"])
# Kernels of kron are compiled, which takes seconds each.
NAMES = timm.optim.list_optimizers(exclude_filters=[*OTHERS, "kron*"])


def network() -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(2, 4, 3, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 8), nn.Linear(8, 2))


def descend(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    images = torch.randn(8, 2, 5, 5, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_takes_the_steps_of_timm(name: str) -> None:
    ours, theirs = network(), network()
    config = TimmOptimizer(name=name, lr=0.01, weight_decay=0.1)
    judge = timm.optim.create_optimizer_v2(theirs, name, lr=0.01, weight_decay=0.1)
    found = descend(ours, config.build(ours, effective_batch_size=1, fused=True))
    for one, other in zip(found, descend(theirs, judge), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", OTHERS)
def test_second_order_and_other_packages_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError) as error:
        TimmOptimizer(name=name, lr=0.1)
    assert error.value.errors()[0]["loc"] == ("name",)
    reasons = {"a": "gradients of gradients", "b": "bitsandbytes", "f": "apex"}
    assert reasons[name[0]] in str(error.value)


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("lamp", {}, "`lamb`"),
        ("lamb", {"trust_clop": True}, "trust_clip"),
        ("lamb", {"trust_clip": 1}, "trust_clip"),
        ("lamb", {"betas": [0.9, 0.9, 0.99]}, "betas"),
        ("lion", {"eps": 1e-3}, "eps"),
        ("adamw", {"foreach": True}, "foreach"),
        ("rmsproptf", {"momentum": 1.5}, "momentum"),
        ("muon", {"algo": "cubic"}, "cubic"),
    ],
)
def test_fields_are_those_of_the_signature(name: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TimmOptimizer(name=name, lr=0.1, **fields)


def test_own_fields_reach_timm_and_a_cycled_momentum_replaces_the_first_beta() -> None:
    config = TimmOptimizer(name="lamb", lr=0.1, betas=(0.8, 0.9), trust_clip=True)
    assert TimmOptimizer.model_validate_json(config.model_dump_json()) == config
    assert config.speed_fields()["trust_clip"] is True
    optimizer = config.build(network(), effective_batch_size=1, fused=False)
    set_rates(optimizer, Factors(lr=0.5, momentum=0.7))
    for group in optimizer.param_groups:
        assert (group["betas"], group["trust_clip"]) == ((0.7, 0.9), True)
        assert group["lr"] == pytest.approx(0.05)


def asks_the_host(config: TimmOptimizer) -> bool:
    """Returns whether a step does, as seen by torch's tensors without values on a GPU."""
    with FakeTensorMode(), torch.device("cuda"):
        model = network()
        optimizer = config.build(model, effective_batch_size=1, fused=True)
        for group in optimizer.param_groups:
            group["lr"] = torch.empty((), device="cuda")
            group.update({"capturable": True} if "capturable" in group else {})
        try:
            for _ in range(3):
                for weight in model.parameters():
                    weight.grad = torch.empty_like(weight)
                optimizer.step()
        except DataDependentOutputException:
            return True
    return False


@pytest.mark.parametrize("name", [*sorted(RECORDED), "rmsprop", "lars"])
def test_what_is_recorded_never_asks_the_host(name: str) -> None:
    config = TimmOptimizer(name=name, lr=0.1, weight_decay=0.1)
    assert not config.is_recordable(fused=True, is_scaled=True)
    assert config.is_recordable(fused=True, is_scaled=False) != asks_the_host(config)


def study(tmp_path: Path, fields: str) -> Path:
    recipe = f"model: resnet20, optimizer: {{timm: {{lr: 0.1, {fields}}}}}, epochs: 1.0"
    (tmp_path / "s.yaml").write_text(f"workload: digits\nrecipe: {{{recipe}, batch_size: 64}}\n")
    return tmp_path / "s.yaml"


def test_a_study_searches_own_fields(tmp_path: Path) -> None:
    fields = "name: {choices: [lamb, lambc]}, trust_clip: {choices: [true, false]}"
    names = {parameter.name for parameter in load_study(study(tmp_path, fields)).space.parameters}
    assert names == {"optimizer.timm.name", "optimizer.timm.trust_clip"}


@pytest.mark.parametrize("field", ["trust_clop: true", "trust_clop: {choices: [true, false]}"])
def test_an_unknown_field_of_a_study_is_named_with_its_line(tmp_path: Path, field: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_study(study(tmp_path, field))
    (problem,) = error.value.problems
    assert (problem.path, problem.line) == ("recipe.optimizer.timm.trust_clop", 2)
    assert "trust_clip" in str(problem)

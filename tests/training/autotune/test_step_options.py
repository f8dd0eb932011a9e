import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from helpers.training.tiny import (
    CPU,
    Tiny,
    TinyNetwork,
    make_recipe,
    make_spec,
    make_splits,
    make_workload,
    to_end,
)
from torch import Tensor, nn

from tune_speed.components.models import MODELS
from tune_speed.components.models.cifar import ResNet20
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.training import objective
from tune_speed.training.autotune import step_options
from tune_speed.training.autotune.step_options import CHOICES, provisional, quickest, resolved
from tune_speed.training.build import Job, build_model
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import build_optimizer

SPLITS = make_splits(channels=3)
ALL_AUTO = dict.fromkeys(CHOICES, "auto")


class SlowLayout(Tiny):
    passes: ClassVar[list[bool]] = []
    slow_channels_last: bool = True

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        return SlowNetwork(self, in_channels, num_classes)


class SlowNetwork(TinyNetwork):
    config: SlowLayout

    def forward(self, images: Tensor) -> Tensor:
        is_last = images.is_contiguous(memory_format=torch.channels_last)
        self.config.passes.append(is_last)
        time.sleep(0.02 if is_last == self.config.slow_channels_last else 0.0)
        return super().forward(images)


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", Tiny)
    monkeypatch.setitem(MODELS, "slow", SlowLayout)
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "cache"))


def settle(recipe: Recipe) -> Recipe:
    return resolved(recipe, SPLITS, device=CPU, turnstile=Turnstile(None, why_not="alone"))


@pytest.mark.parametrize("is_slow", [True, False])
def test_the_quicker_layout_is_taken(is_slow: bool) -> None:
    recipe = make_recipe(model=SlowLayout(slow_channels_last=is_slow), channels_last="auto")
    assert settle(recipe).channels_last is not is_slow


def test_a_node_measures_a_kind_of_step_once() -> None:
    recipe = make_recipe(model=SlowLayout(), channels_last="auto")
    settle(recipe)
    SlowLayout.passes.clear()
    longer = recipe.model_copy(update={"epochs": 7.0})
    assert settle(longer).channels_last is False
    assert SlowLayout.passes == []
    settle(recipe.model_copy(update={"batch_size": 4}))  # Another kind.
    assert set(SlowLayout.passes) == {True, False}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"channels_last": 3}', '{"compile": true}'])
def test_a_broken_file_is_measured_anew(tmp_path: Path, text: str) -> None:
    recipe = make_recipe(model=SlowLayout(), channels_last="auto")
    settle(recipe)
    (file,) = (tmp_path / "cache" / "step_choices").glob("*.json")
    file.write_text(text)
    assert settle(recipe).channels_last is False
    assert file.read_text() == '{"channels_last": false}'


def test_nothing_is_measured_where_nothing_is_auto(tmp_path: Path) -> None:
    recipe = make_recipe(cuda_graph=False)
    assert settle(recipe) is recipe
    assert settle(make_recipe()) == recipe, "on a CPU nothing is recorded"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("times", "index"),
    [([1.0, 0.9], 1), ([1.0, 0.98], 0), ([1.0, 1.0], 0), ([1.0, 2.0], 0), ([1.0, 0.9, 0.8], 2)],
)
def test_the_default_holds_unless_another_is_clearly_quicker(times, index):
    assert quickest(times) == index


def test_graphs_are_not_tried_where_there_are_none() -> None:
    assert settle(make_recipe(cuda_graph="auto")).cuda_graph is False


def test_what_a_technique_refuses_is_not_tried() -> None:
    fields = {"speedups": {"depth": "stochastic_depth"}, "compile": "auto", "cuda_graph": "auto"}
    tree = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1, "batch_size": 8}
    settled = settle(Recipe.model_validate({**tree, **fields}))
    assert (settled.compile, settled.cuda_graph) == (False, False)


def test_several_devices_get_the_defaults() -> None:
    recipe = make_recipe(**ALL_AUTO, devices=2)
    assert settle(recipe) == provisional(recipe) == make_recipe(devices=2, cuda_graph=False)


def test_out_of_memory_leaves_the_default() -> None:
    recipe = make_recipe(model=Tiny(most_images=3), optimizer_kernels="auto")
    assert settle(recipe).optimizer_kernels == "fused"


def test_random_numbers_are_as_before() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    settle(make_recipe(model=Tiny(dropout=0.5), optimizer_kernels="auto"))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_record_has_what_was_settled() -> None:
    recipe = make_spec().recipe.model_copy(
        update={"channels_last": "auto", "optimizer_kernels": "auto"}
    )
    spec = make_spec().model_copy(update={"recipe": recipe})
    record = objective.finish(objective.run_trial(spec), on_report=lambda record: None)
    assert record.runs[0].stop_reason and record.runs[0].traceback is None
    assert record.recipe["channels_last"] in (True, False)
    assert record.recipe["optimizer_kernels"] in ("fused", "foreach")


@pytest.mark.slow
@pytest.mark.parametrize("batch", [{"batch_size": "auto"}, {"effective_batch_size": 8}])
def test_batch_is_resolved_beside_it(batch: dict[str, Any]) -> None:
    accumulation = {"accumulation_steps": "auto"} if "effective_batch_size" in batch else {}
    recipe = make_recipe(**{"batch_size": None, **batch}, **accumulation, channels_last="auto")
    turnstile = Turnstile(None, why_not="alone")
    settled = objective.resolve(recipe, SPLITS, device=CPU, turnstile=turnstile)
    assert isinstance(settled.batch_size, int)
    assert settled.channels_last in (True, False)


def test_all_choices_are_fields_with_that_default_and_auto() -> None:
    for name, values in CHOICES.items():
        assert Recipe.model_fields[name].default in (values[0], "auto")
        make_recipe(**{name: "auto"})


def test_kernels_give_the_same_losses() -> None:
    losses = []
    for kernels in ("fused", "foreach"):
        recipe = make_recipe(optimizer_kernels=kernels, epochs=3.0)
        run = to_end(train(Job(make_workload(), recipe, SPLITS, seed=0, device=CPU)))
        losses.append([evaluation.loss for evaluation in run.evaluations])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_foreach_is_taken_on_a_cpu_too() -> None:
    recipe = make_recipe(model=ResNet20(), optimizer_kernels="foreach")
    optimizer, _ = build_optimizer(
        build_model(recipe, SPLITS, seed=0, device=CPU), recipe, device=CPU
    )
    assert all(group["foreach"] and not group["fused"] for group in optimizer.param_groups)


def test_turn_is_taken_to_measure(tmp_path: Path) -> None:
    with Turnstile.open("device", folder=tmp_path / "turnstile") as turnstile:
        recipes = [make_recipe(), make_recipe(channels_last=False)]
        with turnstile.busy():  # As within `compile_s`: own work is no obstacle.
            times = step_options.step_times(recipes, SPLITS, device=CPU, turnstile=turnstile)
    assert len(times) == 2 and min(times) > 0

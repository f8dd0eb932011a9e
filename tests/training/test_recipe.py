import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.making import make_evaluation
from helpers.training.tiny import make_recipe, make_workload
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.core.records import Evaluation
from tune_speed.data.datasets.builtin import Cifar10, Digits
from tune_speed.data.loaders.configs import Resident, Streaming
from tune_speed.data.split import SplitConfig, SplitSizes
from tune_speed.training.precheck import answers, misfits
from tune_speed.training.recipe import Recipe, not_applicable
from tune_speed.training.workload import WORKLOADS, Target, Workload

AUTO = {"accumulation_steps": "auto", "batch_size": None}


def test_effective_batch_size_is_batch_size_times_accumulation_steps() -> None:
    assert make_recipe(batch_size=64, accumulation_steps=4).samples_per_step == 256
    assert make_recipe(**AUTO, effective_batch_size=96).samples_per_step == 96


@pytest.mark.parametrize(
    ("fields", "must"),
    [
        ({"batch_size": None}, "batch_size must be given"),
        ({"effective_batch_size": 64}, "effective_batch_size left out"),
        (AUTO, "must come with effective_batch_size"),
        ({**AUTO, "batch_size": 8, "effective_batch_size": 64}, "without batch_size"),
        ({"batch_size": 0}, "greater than 0"),
        ({"accumulation_steps": 0}, "greater than 0"),
        ({"accumulation_steps": "all"}, "auto"),
        ({"batch_size": "8"}, "valid integer"),
        ({"epochs": 0.0}, "greater than 0"),
        ({"epochs": float("inf")}, "finite|less than or equal"),
        ({"label_smoothing": 1.0}, "less than 1"),
        ({"clip_norm": 0.0}, "greater than 0"),
        ({"precision": "fp8"}, "fp16"),
    ],
)
def test_recipe_that_cannot_work_is_refused(fields: dict[str, object], must: str) -> None:
    with pytest.raises(ValidationError, match=must):
        make_recipe(**fields)


@pytest.mark.parametrize(
    ("num_train", "batch_size", "accumulation_steps", "epochs", "per_epoch", "steps"),
    [
        (20, 8, 1, 1.0, 3, 3),
        (20, 8, 2, 1.0, 2, 2),  # 16 samples, then a ragged group of 4
        (20, 8, 4, 3.0, 1, 3),  # one group, smaller than wanted
        (24, 8, 1, 1.5, 3, 4),  # 4.5, to the even number
        (24, 8, 1, 2.4, 3, 7),
        (24, 8, 1, 0.01, 3, 1),  # at least one step
        (45_000, 128, 4, 10.0, 88, 880),
    ],
)
def test_steps_are_counted_in_whole_groups(
    num_train: int,
    batch_size: int,
    accumulation_steps: int,
    epochs: float,
    per_epoch: int,
    steps: int,
) -> None:
    recipe = make_recipe(
        batch_size=batch_size, accumulation_steps=accumulation_steps, epochs=epochs
    )
    one_epoch = recipe.model_copy(update={"epochs": 1.0})
    assert one_epoch.steps(num_train=num_train) == per_epoch
    assert recipe.steps(num_train=num_train) == steps


@given(micro_batch=st.integers(1, 64), parts=st.integers(1, 64), accumulation=st.integers(1, 8))
def test_another_micro_batch_keeps_the_effective_batch(micro_batch, parts, accumulation):
    recipe = make_recipe(batch_size=micro_batch * parts, accumulation_steps=accumulation)
    other = recipe.with_micro_batch(micro_batch)
    assert other.batch_size == micro_batch
    assert other.samples_per_step == recipe.samples_per_step
    assert (
        other.model_copy(
            update={"batch_size": recipe.batch_size, "accumulation_steps": accumulation}
        )
        == recipe
    )


def test_resolved_auto_recipe_is_a_valid_recipe() -> None:
    recipe = make_recipe(**AUTO, effective_batch_size=96, model=ResNet20()).with_micro_batch(24)
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    assert (recipe.batch_size, recipe.accumulation_steps) == (24, 4)


def test_only_fp16_needs_a_gpu() -> None:
    reasons = {name: make_recipe(precision=name).needs_cuda() for name in ("fp32", "bf16", "fp16")}
    assert reasons["fp32"] is reasons["bf16"] is None
    assert "CPU" in reasons["fp16"]


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "swats"])
@pytest.mark.parametrize("precision", ["half", "half_fp32_norms"])
def test_an_eps_whose_square_is_zero_in_fp16_is_refused(optimizer: str, precision: str) -> None:
    assert torch.tensor(2.4e-4, dtype=torch.float16).square() <= 2.0**-24, "the least above 0"
    make_recipe(precision=precision, optimizer={optimizer: {"lr": 1e-3, "eps": 2.5e-4}})
    for eps in (1e-8, 6e-8, 2.4e-4):
        with pytest.raises(ValidationError, match=r"eps must be at least 0\.00025 with precision"):
            make_recipe(precision=precision, optimizer={optimizer: {"lr": 1e-3, "eps": eps}})


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_torchs_own_graphs_and_accumulation_are_refused_and_never_made(mode: str) -> None:
    tree = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1, "batch_size": 8}
    fields = {**tree, "compile": True, "compile_mode": mode}
    growth = {"speedups": {"batch_growth": "batch_stages"}}
    for accumulating in ({"accumulation_steps": 2}, growth):
        with pytest.raises(ValidationError, match=f"with accumulation, not {mode}"):
            Recipe.model_validate({**fields, **accumulating})
    whole = Recipe.model_validate(fields)
    half = whole.with_micro_batch(4)
    assert half.compile_mode in ("default", "max-autotune-no-cudagraphs")
    assert Recipe.model_validate(half.model_dump(mode="json")) == half
    assert whole.with_micro_batch(8).compile_mode == mode


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PINNED, PAGED = Streaming(pin_memory=True), Streaming(pin_memory=False)


def make(**fields: Any) -> Recipe:
    return Recipe(model=ResNet20(), optimizer=Sgd(lr=0.1), epochs=1, batch_size=8, **{**fields})


def reason(recipe: Recipe, base: Recipe, *, device: torch.device, gpus: int = 0) -> str | None:
    return not_applicable(recipe, base, device=device, num_devices=gpus)


def test_pinned_memory_says_nothing_without_a_gpu() -> None:
    on, off = make(loader=PINNED), make(loader=PAGED)
    assert "there is none here" in str(reason(on, off, device=CPU))
    assert "there is none here" in str(reason(off, on, device=CPU))
    assert reason(on, off, device=CUDA, gpus=1) is None


def test_other_loader_is_a_change_of_its_own_though_it_pins_by_default() -> None:
    assert Streaming().pin_memory
    assert reason(make(loader=Streaming()), make(loader=Resident()), device=CPU) is None


def test_fp16_says_nothing_on_a_cpu_unless_the_base_has_it_too() -> None:
    fp16 = make(precision="fp16")
    assert "on a CPU" in str(reason(fp16, make(), device=CPU))
    assert reason(fp16, make(), device=CUDA, gpus=1) is None
    assert reason(make(precision="fp16", accumulation_steps=2), fp16, device=CPU) is None


@pytest.mark.parametrize(
    "change",
    [{"precision": "bf16"}, {"accumulation_steps": 2}, {"devices": 2}, {"loader": PAGED}],
)
def test_all_else_can_be_run_on_a_cpu(change: dict[str, Any]) -> None:
    assert reason(make(**change), make(), device=CPU) is None


def test_more_gpus_than_there_are_cannot_be_run() -> None:
    four = make(devices=4)
    assert reason(four, make(), device=CUDA, gpus=1) == "it takes 4 GPUs, and there is 1 here"
    assert reason(four, make(), device=CUDA, gpus=2) == "it takes 4 GPUs, and there are 2 here"
    assert reason(four, make(), device=CUDA, gpus=4) is None


NUM_TRAIN = 320
"""Ten steps of 32 samples, as `make_evaluation` counts them."""


def curve(*accuracies: float, steps: Sequence[int] | None = None) -> list[Evaluation]:
    """Returns evaluations at each epoch (or at `steps`), on a training clock of 1 s a step."""
    at = steps or range(0, 10 * len(accuracies), 10)
    return [
        make_evaluation(step=step, train_s=float(step), accuracy=accuracy)
        for step, accuracy in zip(at, accuracies, strict=True)
    ]


def time_of(mode: str, evaluations: list[Evaluation], *, at_end: bool = True) -> float | None:
    workload = make_workload(target=0.9, mode=mode)
    return workload.time_to_target(evaluations, num_train=NUM_TRAIN, at_end=at_end)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ((0.1, 0.5, 0.9), 20.0),  # exactly the target is enough
        ((0.1, 0.95, 0.95, 0.89), None),  # passes on the way count for nothing
        ((0.1, 0.2, 0.3), None),
        ((0.1,), None),
        ((), None),
    ],
)
def test_fixed_length_looks_at_the_end_alone(accuracies, expected):
    assert time_of("fixed_length", curve(*accuracies)) == expected
    assert time_of("fixed_length", curve(*accuracies), at_end=False) is None


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ((0.1, 0.95, 0.95), 10.0),  # the first of the two
        ((0.1, 0.95, 0.8, 0.95, 0.9, 0.1), 30.0),
        ((0.1, 0.95, 0.8, 0.95), None),  # a single pass at the very end
        ((0.1, 0.95, 0.8, 0.95, 0.8), None),  # never twice in a row
        ((0.95,), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("at_end", [True, False])
def test_anytime_needs_two_passes_in_a_row(accuracies, expected, at_end):
    assert time_of("anytime", curve(*accuracies), at_end=at_end) == expected


def test_anytime_takes_no_evaluation_off_the_grid_as_confirmation() -> None:
    passes = (0.1, 0.95, 0.95)
    assert time_of("anytime", curve(*passes, steps=(0, 10, 11))) is None
    assert time_of("anytime", curve(*passes, steps=(0, 12, 20))) == 12.0


def test_anytime_asks_the_first_evaluation_after_each_point_of_the_grid() -> None:
    workload = make_workload(target=0.9, mode="anytime", eval_every_samples=100)
    # 32 samples a step: the points 100, 200, 300 are reached by the steps 4, 7, 10.
    evaluations = curve(0.1, 0.1, 0.95, 0.95, steps=(0, 4, 7, 10))
    assert workload.time_to_target(evaluations, num_train=NUM_TRAIN, at_end=False) == 7.0


def test_target_may_be_on_macro_f1() -> None:
    evaluation = make_evaluation(accuracy=0.9)  # its macro F1 is half of it
    workload = Workload(dataset=Digits(), target=Target(metric="macro_f1", value=0.5))
    assert workload.metric_of(evaluation) == 0.45
    assert workload.time_to_target([evaluation], num_train=320, at_end=True) is None


def test_grid_is_the_training_part_by_default() -> None:
    assert make_workload().grid(num_train=123) == 123
    assert make_workload(eval_every_samples=50).grid(num_train=123) == 50


def test_identity_leaves_out_where_the_data_lies() -> None:
    identities = {
        Workload(dataset=Cifar10(root=root), target=Target(value=0.9)).identity(data_hash="d")
        for root in ("data", "/elsewhere")
    }
    assert len(identities) == 1


def test_identity_covers_everything_else() -> None:
    workload = make_workload(target=0.9)
    changes: dict[str, object] = {
        "dataset": Digits(scale=2),
        "target": Target(value=0.91),
        "mode": "anytime",
        "max_train_s": 1.0,
        "split": SplitConfig(seed=1),
        "eval_every_samples": 100,
        "eval_batch_size": 10,
        "certify_on": "train+validation",
    }
    assert set(changes) == set(Workload.model_fields) - {"name"}
    others = [workload.model_copy(update={name: value}) for name, value in changes.items()]
    identities = {w.identity(data_hash="d") for w in (workload, *others)}
    assert len(identities | {workload.identity(data_hash="other")}) == len(changes) + 2


def test_identity_of_a_workload_that_certifies_on_train_is_as_before_there_was_another() -> None:
    plain = Workload(dataset=Digits(), target=Target(value=0.9))
    said = Workload(dataset=Digits(), target=Target(value=0.9), certify_on="train")
    assert "certify_on" not in said.model_dump(mode="json")
    # As computed by the version before the field.
    assert plain.identity(data_hash="d") == said.identity(data_hash="d") == "f1386e401892fa31"


def test_a_long_tail_is_certified_on_the_training_part_alone() -> None:
    split = SplitConfig(train_samples=300, long_tail=0.1)
    with pytest.raises(ValidationError, match="certify_on must be train with"):
        make_workload(split=split, certify_on="train+validation")


def test_built_in_workload_has_its_name_and_others_are_described() -> None:
    assert WORKLOADS["digits"].label == "digits"
    assert make_workload(target=0.5).label == "digits-accuracy-0.5"


def test_a_name_is_what_boards_show_and_no_part_of_the_identity() -> None:
    workload = make_workload(target=0.5)
    named = Workload.model_validate({**workload.model_dump(), "dataset": "digits", "name": "mine"})
    assert named.label == "mine" and "name" not in workload.model_dump()
    assert named.identity(data_hash="d") == workload.identity(data_hash="d")


def test_sizes_are_known_without_the_data() -> None:
    # 359 of 1797 for the test part, then 20 % of 1438 for validation.
    assert WORKLOADS["digits"].sizes() == SplitSizes(train=1150, validation=288, test=359)


def test_workload_survives_json() -> None:
    workload = make_workload(target=0.9, mode="anytime", split=SplitConfig(train_samples=50))
    assert Workload.model_validate(json.loads(workload.model_dump_json())) == workload


@pytest.mark.parametrize(
    "fields",
    [
        {"target": {"value": 0.0}},
        {"target": {"value": 1.01}},
        {"target": {"value": 0.9, "metric": "loss"}},
        {"max_train_s": 0.0},
        {"eval_every_samples": 0},
        {"eval_batch_size": 0},
        {"mode": "sometimes"},
        {"epochs": 3},
    ],
)
def test_workload_that_cannot_work_is_refused(fields: dict[str, object]) -> None:
    good = {"dataset": {"name": "digits"}, "target": {"value": 0.9}}
    assert Workload.model_validate(good)
    with pytest.raises(ValidationError, match=next(iter(fields))):
        Workload.model_validate({**good, **fields})


DATA: dict[str, Any] = {"image_shape": (32, 32, 3), "num_classes": 10, "num_train": 100}
PLAIN: dict[str, Any] = {"optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1, "batch_size": 2}


def recipe(model: Any, **speedups: Any) -> Recipe:
    return Recipe.model_validate({**PLAIN, "model": model, "speedups": speedups})


@pytest.mark.parametrize(
    ("model", "speedups"),
    [
        ("resnet50", {"depth": "stochastic_depth"}),
        ({"torchvision": {"name": "resnet18"}}, {"depth": "stochastic_depth"}),
        ("preact_resnet", {"depth": "boosted", "init": "kaiming"}),
        ("vgg16_bn", {"backward": "meprop", "dropout": "dropout_removal"}),
        ("mobilenet", {"resolution": "progressive_resizing", "loss": "focal"}),
        ("vit", {}),
    ],
)
def test_what_can_be_trained_fits(model: Any, speedups: dict[str, Any]) -> None:
    assert misfits(recipe(model, **speedups), **DATA) == ()


@pytest.mark.parametrize(
    ("model", "speedups", "path"),
    [
        ({"alexnet": {"stem": "native"}}, {}, "model"),
        ("plain_cnn", {"depth": "stochastic_depth"}, "speedups.depth.stochastic_depth"),
        ("resnet20", {"backward": "meprop"}, "speedups.backward.meprop"),
        ("resnet20", {"dropout": "dropout_removal"}, "speedups.dropout.dropout_removal"),
        ("vgg16_bn", {"resolution": "progressive_resizing"}, "speedups.resolution"),
        ("vit", {"resolution": "progressive_resizing"}, "speedups.resolution"),
    ],
)
def test_what_cannot_be_is_named(model: Any, speedups: dict[str, Any], path: str) -> None:
    [problem] = misfits(recipe(model, **speedups), **DATA)
    assert problem.path.startswith(path) or problem.path.startswith(f"recipe.{path}")
    assert problem.must.startswith("must ")


def test_question_of_two_recipes_has_two_answers() -> None:
    models = ["resnet20", {"alexnet": {"stem": "native"}}]
    question = {**DATA, "recipes": [{**PLAIN, "model": model} for model in models]}
    fits, [problem] = answers(question)
    assert fits == []
    assert problem["path"].endswith("model") and "32" in problem["must"]


def test_a_weights_file_that_is_missing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    named = recipe({"resnet20": {"weights_file": str(file)}})
    [problem] = misfits(named, **DATA)
    assert (problem.path, problem.given) == ("model.weights_file", str(file))
    file.touch()
    assert misfits(named, **DATA) == ()

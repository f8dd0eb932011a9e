from pathlib import Path
from typing import Any

import pytest
from helpers.command import TINY_STUDY
from helpers.experiments.ablations import RECIPE, make_plan
from helpers.texts import Texts

from tune_speed.core.errors import ConfigError, DataError
from tune_speed.experiments.ablation import plan as ablation_plan
from tune_speed.experiments.ablation.plan import overrides_of, plan_ablation
from tune_speed.experiments.rerun import load_rerun
from tune_speed.study.file import RecipeFile

PINNED, FP16, PAIR = "loader.pin_memory=true", "precision=fp16", "accumulation_steps=2"


def names(plan: ablation_plan.AblationPlan) -> list[str]:
    return [arm.name for arm in plan.arms]


def test_each_arm_is_a_recipe_of_its_own(tmp_path: Path) -> None:
    plan = make_plan(
        tmp_path,
        "ablate.design=factorial",
        axes={"accumulation_steps": 2, "optimizer.lr": [0.2, 0.4]},
    )
    found = {
        name: (file.recipe.accumulation_steps, file.recipe.optimizer.lr)
        for name, file in plan.files.items()
    }
    assert found == {
        "base": (1, 0.1),
        PAIR: (2, 0.1),
        "optimizer.lr=0.2": (1, 0.2),
        "optimizer.lr=0.4": (1, 0.4),
        f"{PAIR} + optimizer.lr=0.2": (2, 0.2),
        f"{PAIR} + optimizer.lr=0.4": (2, 0.4),
    }
    assert plan.settings[f"{PAIR} + optimizer.lr=0.2"] == {
        "accumulation_steps": 2, "optimizer.lr": 0.2,
    }  # fmt: skip


def test_axes_of_the_file_are_planned_and_an_option_replaces_them(tmp_path: Path) -> None:
    text = RECIPE + "ablate: {axes: {epochs: 2}, seeds: 3}\n"
    plan = make_plan(tmp_path, axes=None, text=text)
    assert (names(plan), plan.config.seeds) == (["base", "epochs=2"], 3)
    assert names(make_plan(tmp_path, text=text)) == ["base", PAIR, "label_smoothing=0.1"]


def test_later_setting_replaces_an_earlier_one(tmp_path: Path) -> None:
    axes = {
        "steps": {"rate": {"optimizer.lr": 0.5}},
        "adamw": {"adamw": {"optimizer": {"adamw": {"lr": 0.001}}}},
        "back": {"sgd": {"optimizer": {"sgd": {"lr": 0.3}}, "optimizer.lr": 0.7}},
    }
    files = make_plan(tmp_path, "ablate.design=cumulative", axes=axes).files
    assert [file.recipe.optimizer.lr for file in files.values()] == [0.1, 0.5, 0.001, 0.7]


def test_overrides_are_yaml_on_one_line() -> None:
    settings = [("a", None), ("b.c", [1, "x"]), ("a", {"d": True})]
    assert overrides_of(settings) == ["a=null", 'b.c=[1, "x"]', 'a={"d": true}']


# --- Not applicable here


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_what_says_nothing_on_a_cpu_is_no_arm_and_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    axes = {"accumulation_steps": 2, "precision": "fp16", "loader.pin_memory": True}
    plan = make_plan(tmp_path, "ablate.design=factorial", f"run.device={device}", axes=axes)
    assert names(plan) == ["base", PAIR]
    assert [arm.name for arm in plan.absent] == [FP16, PINNED]
    assert "on a CPU" in plan.not_applicable[FP16]
    assert "GPU, and there is none here" in plan.not_applicable[PINNED]
    assert [axis.name for axis in plan.axes] == ["accumulation_steps"]
    assert plan.settings[PINNED] == {"loader.pin_memory": True}


def test_level_goes_and_the_others_of_its_axis_stay(tmp_path: Path) -> None:
    axes = {"precision": ["fp16", "bf16"], "accumulation_steps": 2}
    plan = make_plan(tmp_path, "ablate.design=factorial", axes=axes)
    assert names(plan) == ["base", "precision=bf16", PAIR, f"precision=bf16 + {PAIR}"]
    assert list(plan.not_applicable) == [FP16]


@pytest.mark.parametrize("design", ["leave-one-out", "stacking", "cumulative"])
def test_design_of_combinations_with_one_axis_left_runs_it_alone(
    tmp_path: Path, design: str
) -> None:
    axes = {"accumulation_steps": 2, "loader.pin_memory": True}
    plan = make_plan(tmp_path, f"ablate.design={design}", axes=axes)
    assert names(plan) == ["base", PAIR]


def test_base_runs_alone_where_nothing_is_applicable(tmp_path: Path) -> None:
    axes = {"precision": "fp16", "loader.pin_memory": True}
    plan = make_plan(tmp_path, "ablate.design=factorial", axes=axes)
    assert (names(plan), list(plan.files)) == (["base"], ["base"])
    assert list(plan.not_applicable) == [FP16, PINNED]


def test_device_that_is_not_there_is_not_applicable(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, axes={"run.device": "cuda:63", "run.cpu_threads": 2})
    assert names(plan) == ["base", "run.cpu_threads=2"]
    assert plan.not_applicable == {"run.device=cuda:63": "device cuda:63 is not there"}


# --- Refused

REFUSED: dict[str, tuple[list[str], dict[str, Any]]] = {
    "the base's own": ([], {"axes": {"accumulation_steps": 1}}),
    "one level is the base's": ([], {"axes": {"epochs": [2, 1.0]}}),
    "by the component's name": ([], {"axes": {"optimizer.sgd.lr": 0.1}}),
    "of the machine": ([], {"axes": {"own": {"same": {"run.cpu_threads": 1, "batch_size": 50}}}}),
    "the workload": ([], {"axes": {"workload.target.value": 0.5}}),
    "the search": ([], {"axes": {"a": {"b": {"search.seed": 1}}}}),
    "several values": (
        [],
        {"axes": {"precision": "fp17", "batch_size": [-1, 25], "optimizer.sgd.rate": 1}},
    ),
    "fields that clash": ([], {"axes": {"accumulation_steps": "auto"}}),
    "the base itself": (["epochs=-1"], {}),
    "still searched": ([], {"text": TINY_STUDY}),
    "nothing is changed": ([], {"axes": None}),
    "a design alone": (["ablate.design=factorial"], {"axes": None}),
    "a design of one axis": (["ablate.design=stacking"], {"axes": {"loader.pin_memory": True}}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_planned_is_refused(name: str, tmp_path: Path, kept_text: Texts) -> None:
    overrides, given = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        make_plan(tmp_path, *overrides, **given)
    kept_text(str(refused.value).replace(str(tmp_path), "FOLDER"))


def test_unknown_file_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="nothing_like_it"):
        plan_ablation("nothing_like_it", overrides=[], check_data=False)


def test_data_are_asked_for_unless_they_may_be_fetched(tmp_path: Path) -> None:
    text = RECIPE.replace("{name: digits}", "{name: cifar10, root: nowhere}")
    assert names(make_plan(tmp_path, text=text))[0] == "base"
    with pytest.raises(DataError, match="nowhere"):
        plan_ablation(
            str(tmp_path / "tiny.yaml"),
            overrides=["ablate.axes={epochs: 2}"],
            check_data=True,
        )


def test_arm_that_is_run_alone_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, ...]] = []

    def load(source: str, *, overrides: list[str], check_data: bool) -> RecipeFile:
        read.append(tuple(overrides[1:]))
        return load_rerun(source, overrides=overrides, check_data=check_data)

    monkeypatch.setattr(ablation_plan, "load_rerun", load)
    plan = make_plan(tmp_path, "run.seed=3", axes={"batch_size": [10, 20]})
    assert len(plan.files) == 3 and len(read) == len(set(read)) == 3

"""A certificate holds all that a leaderboard row must hold, and survives JSON."""

import json
import math
from functools import cache
from typing import Any

import pytest
from making import make_run
from pydantic import ValidationError
from training import CPU

from tune_speed.components.models.resnet import ResNet20
from tune_speed.components.optim import Sgd
from tune_speed.components.schedules import SCHEDULES
from tune_speed.core.config import canonical_hash, flatten
from tune_speed.core.records import PROTOCOL_VERSION, Clocks, RunResult, Status
from tune_speed.core.stats import RateInterval, TimeInterval, finite_or_none
from tune_speed.experiments.certification.certificate import (
    Certificate,
    CertifiedRecipe,
    Provenance,
    Result,
    System,
    Task,
    Verification,
    VerificationStatus,
    certified_run,
    clock_sheet,
)
from tune_speed.runtime.hardware import describe_system
from tune_speed.training.recipe import Recipe
from tune_speed.tuning.provenance import code_state

RECIPE = Recipe(
    model=ResNet20(),
    optimizer=Sgd(lr=0.1),
    lr_schedule=SCHEDULES["one_cycle"](),
    epochs=2,
    batch_size=32,
)
RUNS = (make_run(time_s=2.0, seed=7), make_run(Status.MISSED, time_s=3.0, accuracy=0.5, seed=8))

ITEMS: dict[str, tuple[str, ...]] = {
    # 1. Task
    "dataset": ("task.dataset",),
    "dataset checksum": ("task.dataset_checksum",),
    "training function": ("task.function_hash",),
    "split seed": ("task.split_seed",),
    "trained on": ("task.trained_on",),
    "target": ("task.target",),
    "metric": ("task.metric", "task.target_mode"),
    "crossing mode": ("task.mode",),
    "evaluation grid": ("task.grid_samples",),
    "TTA views": ("task.tta_views",),
    # 2. Result
    "n, k": ("result.n", "result.k"),
    "success rate interval": ("result.success_rate.low", "result.success_rate.high"),
    "median train_s": ("result.median_s",),
    "mean and SD of train_s": ("result.mean_s", "result.sd_s"),
    "min and max train_s": ("result.min_s", "result.max_s"),
    "ERT": ("result.expected_s",),
    "ERT interval": ("result.expected_interval.low_s", "result.expected_interval.high_s"),
    "mean and SD of accuracy": ("result.metric_mean", "result.metric_sd"),
    "margin": ("result.margin",),
    "steps, epochs, samples": ("result.steps", "result.epochs", "result.samples"),
    "PFLOP": ("result.pflop",),
    "images/s": ("result.images_per_s",),
    "peak memory": ("result.peak_memory_gib",),
    "raw run: seed, hit": ("result.runs.seed", "result.runs.is_hit"),
    "raw run: time": ("result.runs.time_to_target_s", "result.runs.train_s"),
    "raw run: metric": ("result.runs.final_metric",),
    "raw run: end": ("result.runs.status", "result.runs.stop_reason"),
    "raw run: order": ("result.runs.order", "result.runs.started_at"),
    # 3. Clocks
    **{
        f"{clock} per run and in sum": (f"clocks.runs.{clock}_s", f"clocks.total.{clock}_s")
        for clock in ("setup", "compile", "train", "eval", "wall")
    },
    "in/out statement": ("clocks.statement",),
    "protocol version": ("clocks.protocol_version",),
    # 4. Recipe
    "full resolved config": ("recipe.resolved",),
    "effective batch": ("recipe.effective_batch_size",),
    "max LR": ("recipe.max_lr",),
    "model source": ("recipe.model", "recipe.model_source"),
    "parameter count": ("recipe.num_parameters",),
    "stem": ("recipe.stem",),
    "optimiser": ("recipe.optimizer",),
    "all seeds": ("recipe.seeds", "task.split_seed", "provenance.search_seed"),
    "exact command": ("recipe.command",),
    # 5. Code
    "commit": ("code.commit",),
    "dirty diff": ("code.is_dirty", "code.diff", "code.diff_sha256", "code.source_sha256"),
    "config hash": ("code.config_hash",),
    "lock-file hash": ("code.lock_sha256",),
    # 6. System
    "GPU name, UUID": ("system.machine.gpu.name", "system.machine.gpu.uuid"),
    "power limit": ("system.machine.gpu.power_limit_w",),
    "clocks of the GPU": (
        "system.machine.gpu.sm_clock_mhz",
        "system.machine.gpu.memory_clock_mhz",
        "system.machine.gpu.max_sm_clock_mhz",
        "system.machine.gpu.max_memory_clock_mhz",
    ),
    "driver": ("system.machine.gpu.driver",),
    "CUDA, cuDNN": ("system.machine.software.cuda", "system.machine.software.cudnn"),
    "torch, timm": ("system.machine.software.torch", "system.machine.software.timm"),
    "CPU": ("system.machine.cpu.name",),
    "cores": ("system.machine.cpu.physical_cores", "system.machine.cpu.usable_cores"),
    "container digest": ("system.machine.container_digest",),
    "exclusive or shared": ("system.is_exclusive",),
    "co-tenants": ("system.cotenants",),
    "fraction": ("system.device_fraction",),
    "MPS/MIG": ("system.machine.gpu.mps", "system.machine.gpu.mig_mode"),
    "throttle flag": ("system.was_throttled",),
    # 7. Provenance
    "MLflow run ids": (
        "provenance.search_run_id",
        "provenance.trial_run_id",
        "provenance.certified_run_id",
    ),
    "Optuna study/trial": ("provenance.study", "provenance.trial_id"),
    "search-space hash": ("provenance.space_hash",),
    "tuning cost": ("provenance.tuning_trials", "provenance.tuning_device_s"),
    "how the winner was picked": ("provenance.chosen_by",),
    "whether seeds were fresh": ("provenance.has_fresh_seeds",),
    # 8. Verification
    "incumbent timed beside it": (
        "verification.incumbent",
        "verification.incumbent_runs.time_to_target_s",
    ),
    "interleaving order": ("verification.interleaving",),
    "p-value": ("verification.p_value",),
    "status": ("verification.status",),
}
"""What a leaderboard row must hold → where it stands in a certificate."""

RECIPE_ITEMS = {
    "pct_start": "lr_schedule.one_cycle.pct_start",
    "div_factor": "lr_schedule.one_cycle.div_factor",
    "final_div_factor": "lr_schedule.one_cycle.final_div_factor",
    "momentum cycle": "lr_schedule.one_cycle.base_momentum",
    "length": "epochs",
    "learning rate": "optimizer.sgd.lr",
    "weight decay": "optimizer.sgd.weight_decay",
    "momentum": "optimizer.sgd.momentum",
    "batch": "batch_size",
    "accumulation": "accumulation_steps",
    "precision": "precision",
    "memory format": "channels_last",
    "compile": "compile",
    "augmentation": "augmentation.flip",
}
"""What the resolved recipe must hold → where it stands in it."""


@cache
def make_certificate() -> Certificate:
    """Returns a certificate of two made-up runs, a hit and a miss, on this very machine."""
    recipe = RECIPE.model_dump(mode="json")
    rows = tuple(
        certified_run(run, final_metric=run.final.accuracy, order=2 * i, started_at="2026-01-01")
        for i, run in enumerate(RUNS)
        if run.final is not None
    )
    return Certificate(
        certified_at="2026-01-01T00:00:09.000+00:00",
        task=Task(
            workload="digits",
            workload_hash="w" * 16,
            dataset="digits",
            dataset_checksum="d" * 16,
            split_seed=0,
            split_part="test",
            trained_on="train",
            target=0.9,
            metric="accuracy",
            mode="fixed_length",
            grid_samples=1149,
            max_train_s=60.0,
            tta_views=1,
        ),
        result=Result(
            n=2,
            k=1,
            success_rate=RateInterval(low=0.09, high=0.91, confidence=0.95),
            median_s=None,
            mean_s=2.0,
            sd_s=None,
            min_s=2.0,
            max_s=2.0,
            expected_s=5.0,
            expected_interval=TimeInterval(low_s=2.0, high_s=None, confidence=0.95),
            metric_mean=0.725,
            metric_sd=0.318,
            margin=-0.175,
            steps=10,
            epochs=1.0,
            samples=320,
            pflop=1e-5,
            images_per_s=133.0,
            peak_memory_gib=0.5,
            runs=rows,
        ),
        clocks=clock_sheet(RUNS),
        recipe=CertifiedRecipe(
            resolved=recipe,
            effective_batch_size=32,
            max_lr=0.1,
            model="resnet20",
            model_source="tune_speed",
            num_parameters=269_722,
            stem="cifar",
            optimizer="sgd",
            seeds=(7, 8),
            command="tune-speed certify digits",
        ),
        code=code_state().section(config_hash=canonical_hash(recipe)),
        system=System(
            machine=describe_system(CPU),
            is_exclusive=True,
            cotenants=(),
            device_fraction=1.0,
            cpu_threads=1,
            was_throttled=None,
        ),
        provenance=Provenance(
            tracking_uri=None,
            search_run_id=None,
            trial_run_id=None,
            certified_run_id=None,
            study="digits",
            trial_id="t0007",
            sampler="tpe",
            space_hash="s" * 16,
            search_seed=0,
            search_run_seeds=(0, 1),
            tuning_trials=12,
            tuning_device_s=99.0,
            chosen_by="shortest estimated time to target",
            has_fresh_seeds=True,
        ),
        verification=Verification(
            status=VerificationStatus.RETIMED,
            incumbent="digits/t0003",
            incumbent_recipe=recipe,
            incumbent_runs=rows[:1],
            interleaving=("t0007", "t0003", "t0007"),
            speedup=None,
            speedup_low=0.5,
            speedup_high=None,
            p_value=0.2,
            adjusted_p_value=0.2,
            method="test",
            dropping_rule="none",
        ),
    )


def deref(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Returns the object that `part` of `schema` refers to, straight or as an array's items."""
    part = part.get("items", part)
    return schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part


@pytest.mark.parametrize(("item", "path"), [(i, p) for i, paths in ITEMS.items() for p in paths])
def test_row_must_hold(item: str, path: str) -> None:
    schema = Certificate.model_json_schema()
    part = schema
    for name in path.split("."):
        assert name in part["required"], f"{item}: {path}"
        field = part["properties"][name]
        part = deref(schema, field)
    assert field.get("description") or part.get("description"), path


def test_no_field_may_be_forgotten() -> None:
    schema = Certificate.model_json_schema()
    for name, part in {"Certificate": schema, **schema["$defs"]}.items():
        fields = part.get("properties", {})
        assert part["description"], name
        assert name == "StopReason" or set(fields) == set(part.get("required", ())), name
        assert all(f.get("description") or "$ref" in f for f in fields.values()), name


@pytest.mark.parametrize(("item", "path"), RECIPE_ITEMS.items())
def test_resolved_recipe_holds_what_defaults_say(item: str, path: str) -> None:
    names = flatten(make_certificate().recipe.resolved)
    assert path in names, f"{item}: {sorted(names)}"


def test_json_round_trip_changes_nothing() -> None:
    certificate = make_certificate()
    text = certificate.model_dump_json()
    assert Certificate.model_validate_json(text) == certificate
    assert Certificate.model_validate(json.loads(text)) == certificate


def test_what_is_not_there_is_null_and_not_left_out() -> None:
    tree = json.loads(make_certificate().model_dump_json())
    assert tree["system"]["machine"]["gpu"]["uuid"] is None
    assert tree["result"]["median_s"] is None
    with pytest.raises(ValidationError, match="uuid"):
        del tree["system"]["machine"]["gpu"]["uuid"]
        Certificate.model_validate(tree)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_infinity_is_none_and_never_a_number(value: float) -> None:
    fields = make_certificate().result.model_dump()
    with pytest.raises(ValidationError, match="finite"):
        Result.model_validate({**fields, "expected_s": value})
    assert finite_or_none(math.inf) is None
    assert finite_or_none(2.5) == 2.5


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("result", {"k": 2}, "n, k must be 2, 1"),
        ("result", {"n": 1}, "n, k must be 2, 1"),
        ("recipe", {"seeds": [7]}, "seeds must be those of the runs"),
        ("provenance", {"search_run_seeds": [8]}, "has_fresh_seeds must agree"),
        ("clocks", {"runs": []}, "must hold 2 runs"),
    ],
)
def test_sections_that_contradict_each_other_are_refused(
    section: str, change: dict[str, Any], message: str
) -> None:
    tree = make_certificate().model_dump(mode="json")
    with pytest.raises(ValidationError, match=message):
        Certificate.model_validate({**tree, section: {**tree[section], **change}})


def test_clock_sheet_adds_up_every_clock() -> None:
    times = Clocks(setup_s=1.0, compile_s=2.0, train_s=4.0, eval_s=8.0, wall_s=16.0)
    run = RUNS[0].model_copy(update={"clocks": times})
    sheet = clock_sheet((run, run, run))
    assert sheet.total.model_dump() == {
        "setup_s": 3.0,
        "compile_s": 6.0,
        "train_s": 12.0,
        "eval_s": 24.0,
        "wall_s": 48.0,
    }
    assert len(sheet.runs) == 3 and sheet.protocol_version == PROTOCOL_VERSION


def test_run_that_failed_at_once_has_its_row() -> None:
    failed = RunResult(status=Status.FAILED, seed=3, stop_reason="boom")
    row = certified_run(failed, final_metric=None, order=0, started_at="")
    assert (row.is_hit, row.time_to_target_s, row.final_metric) == (False, None, None)
    assert (row.steps, row.epochs, row.status, str(row.stop_reason)) == (
        0,
        0.0,
        Status.FAILED,
        "boom",
    )


def test_certificates_of_older_versions_are_read() -> None:
    whole = {name: None for name in Task.model_fields} | {
        "workload": "digits",
        "workload_hash": "h",
        "split_part": "test",
        "target": 0.9,
        "metric": "accuracy",
        "mode": "anytime",
        "max_train_s": 1.0,
        "tta_views": 1,
    }
    since = ("target_mode", "function_hash", "trained_on")
    older = {k: v for k, v in whole.items() if k not in since}
    task = Task.model_validate(older)
    assert (task.target_mode, task.function_hash, task.trained_on) == ("max", None, "train")

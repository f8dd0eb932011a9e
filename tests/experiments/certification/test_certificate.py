import json
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from making import make_run
from pydantic import ValidationError
from texts import Texts
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


@cache
def make_certificate() -> Certificate:
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


def paths_of(schema: dict[str, Any], part: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yields the path of every field, straight or of an array's items."""
    part = part.get("items", part)
    if "$ref" not in part and "properties" not in part:
        yield path
        return
    inner = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    assert inner["description"], path
    if "properties" not in inner:
        yield path
        return
    # None may be forgotten.
    assert set(inner["properties"]) == set(inner["required"]), path
    for name, field in inner["properties"].items():
        assert field.get("description") or "$ref" in field, f"{path}.{name}"
        yield from paths_of(schema, field, f"{path}.{name}".lstrip("."))


def test_row_must_hold_every_field_and_say_what_it_is(kept_text: Texts) -> None:
    schema = Certificate.model_json_schema()
    kept_text("\n".join(paths_of(schema, schema)))


def test_resolved_recipe_holds_what_defaults_say() -> None:
    names = flatten(make_certificate().recipe.resolved)
    assert {"lr_schedule.one_cycle.pct_start", "optimizer.sgd.momentum", "compile"} <= names.keys()


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
    assert (row.steps, row.epochs, row.status, row.stop_reason) == (0, 0.0, Status.FAILED, "boom")


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

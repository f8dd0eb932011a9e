import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_run
from helpers.texts import Texts
from helpers.training.tiny import CPU
from pydantic import ValidationError

from tune_speed.core.config import flatten
from tune_speed.core.records import PROTOCOL_VERSION, Clocks, RunResult, Status
from tune_speed.core.stats import finite_or_none
from tune_speed.experiments.certification.certificate import (
    Certificate,
    Result,
    Task,
    certified_run,
    clock_sheet,
)
from tune_speed.runtime.hardware import describe_system
from tune_speed.tuning.provenance import code_state

# Of three runs, two of them hits.
FILE = Path(__file__).parents[2] / "artifacts/studies/tiny/certified/tiny-t0006.json"


def make_tree() -> dict[str, Any]:
    tree = json.loads(FILE.read_text())
    machine = describe_system(CPU).model_dump(mode="json")
    code = code_state().section(config_hash="").model_dump(mode="json")
    return {**tree, "code": code, "system": {**tree["system"], "machine": machine}}


def make_certificate() -> Certificate:
    return Certificate.model_validate(make_tree())


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
    # None may be forgotten; a reason may have no figures.
    is_reason = path.endswith("stop_reason")
    assert is_reason or set(inner["properties"]) == set(inner["required"]), path
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
        ("result", {"k": 3}, "n, k must be 3, 2"),
        ("result", {"n": 1}, "n, k must be 3, 2"),
        ("recipe", {"seeds": [7]}, "seeds must be those of the runs"),
        ("provenance", {"has_fresh_seeds": False}, "has_fresh_seeds must agree"),
        ("clocks", {"runs": []}, "must hold 3 runs"),
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
    run = make_run().model_copy(update={"clocks": times})
    sheet = clock_sheet((run, run, run))
    assert tuple(sheet.total.model_dump().values()) == (3.0, 6.0, 12.0, 24.0, 48.0)
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
    since = ("target_mode", "function_hash", "trained_on")
    older = {name: value for name, value in make_tree()["task"].items() if name not in since}
    task = Task.model_validate(older)
    assert (task.target_mode, task.function_hash, task.trained_on) == ("max", None, "train")

import json
from typing import Any

from helpers.reporting.pages import trained

from tune_speed.core.records import TrialRecord
from tune_speed.reporting.page.trial_table import fields_of
from tune_speed.tracking.columns import COLUMNS

SGD = {"optimizer": {"sgd": {"lr": 0.1}}, "epochs": 2, "clip_norm": None}
ADAMW = {"optimizer": {"adamw": {"lr": 0.2}}, "epochs": 2}


def fields(*recipes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    records: list[TrialRecord] = [
        trained(f"t{i:04d}", recipe=recipe, params={}, **changes)
        for i, recipe in enumerate(recipes)
    ]
    read: dict[str, Any] = json.loads(fields_of(records))
    return read


def test_what_all_trials_share_is_written_once() -> None:
    found = fields(SGD, ADAMW)
    assert found["same"]["epochs"] == 2 and found["same"]["status"] == "reached"
    assert found["rows"]["trial_id"] == ["t0000", "t0001"]
    assert found["rows"]["optimizer"] == ["sgd", "adamw"]
    assert found["rows"]["optimizer.sgd.lr"] == [0.1, None]


def test_last_part_of_a_place_stands_for_it_where_that_is_clear() -> None:
    assert fields(SGD, ADAMW)["rows"]["lr"] == [0.1, 0.2]
    both = {"speedups": {"first": {"lr": 1}}, **SGD}
    found = fields(both, SGD)
    assert "must name one setting" in found["unclear"]["lr"]
    assert "lr" not in found["rows"] | found["same"]


def test_one_and_true_are_told_apart() -> None:
    assert fields({"compile": True}, {"compile": 1})["rows"]["compile"] == [True, 1]


def test_number_without_an_end_is_absent() -> None:
    assert fields({"clip_norm": float("inf")})["same"]["clip_norm"] is None


def test_every_result_says_what_it_can_be() -> None:
    columns = fields(SGD)["columns"]
    assert columns.keys() == COLUMNS.keys()
    assert columns["steps"] is True and columns["stop_reason"] == []
    assert columns["kind"] == ["estimate", "certified"]


def test_names_of_strangers_are_text() -> None:
    evil = "</template><script>alert(1)</script>"
    found = fields({"epochs": 1}, study=evil)
    assert found["same"]["study"] == evil

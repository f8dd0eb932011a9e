import json
from typing import Any

import pytest
from helpers.making import WORKLOAD, make_record, make_run

from tune_speed.core.records import Status, TrialRecord
from tune_speed.reporting.table import as_text
from tune_speed.reporting.trials import comparison
from tune_speed.reporting.trials.comparison import SECTIONS, Comparison, compare_records

SGD = {"optimizer": {"sgd": {"lr": 0.1, "momentum": 0.9}}, "batch_size": 32, "loader": {"a": {}}}
ADAM = {"optimizer": {"adam": {"lr": 0.1}}, "batch_size": 32, "clip_norm": None}


def trial(trial_id: str, recipe: dict[str, Any] = SGD, **fields: Any) -> tuple[str, TrialRecord]:
    record = make_record(trial_id, **fields).model_copy(update={"recipe": recipe})
    return f"run-{trial_id}-{record.kind}", record


def table(comparison: Comparison, section: str) -> dict[str, tuple[Any, ...]]:
    return {line.name: line.values for line in comparison.lines if line.section == section}


def changed(name: str, value: Any) -> tuple[str, TrialRecord]:
    run_id, record = trial("t0001", time_s=2.0)
    return run_id, TrialRecord.model_validate({**dict(record), name: value})


def test_only_what_differs_between_recipes_is_shown_and_null_is_as_good_as_absent() -> None:
    found = table(compare_records([trial("t0000"), trial("t0001", ADAM)]), "recipe")
    assert found == {
        "optimizer": ("sgd", "adam"),
        "loader": ("a", None),
        "optimizer.sgd.lr": (0.1, None),
        "optimizer.sgd.momentum": (0.9, None),
        "optimizer.adam.lr": (None, 0.1),
    }


def test_equal_settings_are_shown_on_demand() -> None:
    found = table(compare_records([trial("t0000"), trial("t0001")], with_equal=True), "recipe")
    assert found["batch_size"] == (32, 32) and found["optimizer"] == ("sgd", "sgd")
    assert table(compare_records([trial("t0000"), trial("t0001")]), "recipe") == {}


def test_comparable_results_are_ranked() -> None:
    pair = [trial("t0000", time_s=3.0), trial("t0001", time_s=2.0)]
    comparison = compare_records([*pair, trial("t0003", status=Status.MISSED)])
    found = table(comparison, "result")
    assert found["rank"] == (2, 1, None)
    assert found["times_the_fastest"] == (1.5, 1.0, None)
    assert found["time_to_target_s"] == (3.0, 2.0, None)
    assert "tied" not in found and "expected_s" not in found
    assert comparison.warning == ""


def test_equal_times_are_a_tie() -> None:
    found = table(compare_records([trial("t0000"), trial("t0001")]), "result")
    assert (found["rank"], found["tied"]) == ((1, 1), (True, True))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("device", "NVIDIA H200", "device: cpu (1 thread, test) | NVIDIA H200"),
        ("workload_name", "cifar10", "workload: digits | cifar10"),
        ("workload_hash", "other", "workload_hash: wwwwwwwwwwwwwwww | other"),
        ("protocol_version", 1, "protocol_version: 2 | 1"),
        ("kind", "certified", "kind: estimate | certified"),
    ],
)
def test_what_is_not_comparable_is_not_ranked_and_said(name: str, value: Any, told: str) -> None:
    comparison = compare_records([trial("t0000"), changed(name, value)])
    assert told in comparison.warning
    found = table(comparison, "result")
    assert not {"rank", "tied", "times_the_fastest"} & set(found)
    assert found["time_to_target_s"] == (1.0, 2.0)


def test_of_several_runs_hits_and_expected_time_are_shown() -> None:
    runs = (make_run(time_s=1.0), make_run(time_s=2.0), make_run(Status.MISSED, time_s=3.0))
    certified = trial("t0000", runs=runs, kind="certified")
    found = table(compare_records([certified, trial("t0001", kind="certified")]), "result")
    assert (found["hits"], found["n"]) == ((2, 1), (3, 1))
    assert found["expected_s"] == (3.0, 1.0)  # (1 + 2 + 3) s for two hits
    assert found["time_to_target_s"] == (2.0, 1.0)


def test_workloads_and_versions_are_shown_where_they_differ() -> None:
    target = {"target": {"metric": "accuracy", "value": 0.8}}
    other = changed("workload", {**WORKLOAD, **target})
    other[1].environment["torch"] = "2.9.0"
    comparison = compare_records([trial("t0000"), other])
    assert table(comparison, "workload") == {"target.value": (0.9, 0.8)}
    assert table(comparison, "setting") == {"environment.torch": ("2.15.0", "2.9.0")}
    assert [line.section for line in comparison.lines] == sorted(
        [line.section for line in comparison.lines], key=SECTIONS.index
    )


def test_each_result_has_a_name_of_its_own() -> None:
    estimate, certified = trial("t0000"), trial("t0000", kind="certified")
    assert compare_records([estimate, certified]).names == (
        "study/t0000",
        "study/t0000@certified",
    )
    twice = [("1" * 32, estimate[1]), ("2" * 32, estimate[1])]
    assert compare_records(twice).names == ("study/t0000 (11111111)", "study/t0000 (22222222)")


EVIL = "<script>alert(1)</script>|[red]\x1b[2J"


def evil() -> Comparison:
    record = make_record("t0001", study=EVIL).model_copy(update={"recipe": {"model": EVIL}})
    return compare_records([trial("t0000"), ("run", record)])


def test_markdown_shows_names_and_does_nothing_with_them() -> None:
    rows = comparison.table_rows(evil(), comparison.markdown_of)
    text = "".join(f"{name}{value}" for row in rows for name, value in row.items())
    assert "\\<script\\>" in text
    assert "<script" not in text.replace("\\<", "") and "\x1b" not in text


def test_the_table_shows_names_as_they_are_but_no_control_characters() -> None:
    shown = as_text(comparison.SideBySide(evil()), width=200)
    assert "<script>alert(1)</script>|[red]" in shown
    assert "\x1b[2J" not in shown


def test_people_read_one_thread_and_files_the_device_as_records_name_it() -> None:
    found = table(compare_records([trial("t0000"), trial("t0001")]), "result")
    assert found["device"] == ("cpu (1 threads, test)",) * 2
    assert comparison.text_of("cpu (1 threads, test)") == "cpu (1 thread, test)"
    assert comparison.raw_of("cpu (1 threads, test)") == "cpu (1 threads, test)"


def test_json_has_unrounded_figures_and_says_why_nothing_is_ranked() -> None:
    pair = [trial("t0000", time_s=1 / 3), changed("device", "NVIDIA H200")]
    found = json.loads(json.dumps(comparison.as_dict(compare_records(pair))))
    assert found["result"]["time_to_target_s"] == [1 / 3, 2.0]
    assert found["runs"][0] == {"name": "study/t0000", "run_id": "run-t0000-estimate"}
    assert found["is_comparable"] is False
    assert found["why_not"] == {"device": ["cpu (1 threads, test)", "NVIDIA H200"]}


def test_equal_recipes_are_said_to_be_equal() -> None:
    equal = compare_records([trial("t0"), trial("t1")])
    assert "recipe: no difference" in as_text(comparison.SideBySide(equal))


@pytest.mark.parametrize("width", [60, 80, 90, 100, 200])
def test_no_result_is_left_out_however_narrow_the_terminal_is(width: int) -> None:
    trials = [trial(f"t{i}", time_s=1.25 + i, study="a_study_of_mine") for i in range(4)]
    trials.append(trial("t4", ADAM, time_s=5.25, study="a_study_of_mine"))
    shown = as_text(comparison.SideBySide(compare_records(trials)), width=width)
    for number in range(5):
        assert f"{1.25 + number:.4g}" in shown
        assert f"t{number}" in shown
    assert max(map(len, shown.splitlines())) <= width


def test_results_share_one_table_where_there_is_room() -> None:
    both = comparison.SideBySide(compare_records([trial("t0"), trial("t1")]))
    assert as_text(both, width=120).count("time_to_target_s") == 1

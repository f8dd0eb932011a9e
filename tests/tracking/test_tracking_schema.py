import json
from typing import Any

import pytest
import yaml
from helpers.making import make_evaluation, make_record, make_run
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name, _validate_param_name

from tune_speed.core.comparability import board_key
from tune_speed.core.records import Recommended, RunResult, Status, TrialRecord
from tune_speed.core.text import Interval
from tune_speed.core.words import ProposalReason, StopReason
from tune_speed.tracking import schema

PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="@"), max_size=60)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FINITE | PLAIN
TREES = st.recursive(VALUES, lambda inner: st.dictionaries(PLAIN, inner, max_size=3), max_leaves=8)
RECIPES = st.dictionaries(PLAIN, TREES, max_size=5)


@st.composite
def records(draw: st.DrawFn) -> TrialRecord:
    seeds = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12, unique=True))
    runs = tuple(
        make_run(draw(st.sampled_from(Status)), seed=seed, time_s=draw(st.floats(0.1, 1e6)))
        for seed in seeds
    )
    record = make_record(runs=runs, params=draw(RECIPES))
    fields = {
        "recipe": draw(RECIPES),
        "environment": draw(st.dictionaries(PLAIN, PLAIN, max_size=4)),
    }
    return TrialRecord.model_validate({**record.model_dump(), **fields})


@settings(max_examples=50)
@given(records())
def test_a_packed_record_comes_back(record: TrialRecord) -> None:
    tags = schema.pack_record(record)
    assert all(0 < len(value) <= 8000 for value in tags.values())
    assert schema.unpack_record({**tags, "other": "x"}) == record.model_copy(
        update={"environment": schema._public(record.environment)}
    )


def test_a_packed_record_keeps_last_evaluation_and_end_of_traceback() -> None:
    evaluations = tuple(make_evaluation(step=i) for i in range(500))
    run = make_run().model_copy(
        update={"evaluations": evaluations, "traceback": "x" * 9000 + "END"}
    )
    tags = schema.pack_record(make_record(runs=(run,)))
    back = schema.unpack_record(tags)
    assert len(tags) == 1 and back is not None
    assert back.runs[0].evaluations == evaluations[-1:]
    assert back.runs[0].traceback is not None and back.runs[0].traceback.endswith("xxEND")


@pytest.mark.parametrize("text", ["", "{", '{"study": 1}', "null"])
def test_what_is_no_record_gives_none(text: str) -> None:
    assert schema.unpack_record({schema.RECORD: text}) is None


def test_a_record_that_cannot_be_is_none_in_a_store_either() -> None:
    fields = make_record().model_dump(mode="json")
    for damage in ({"runs": []}, {"runs": [{**fields["runs"][0], "time_to_target_s": 0.0}]}):
        assert schema.unpack_record({schema.RECORD: json.dumps(fields | damage)}) is None


@given(st.text(max_size=400))
def test_any_name_becomes_a_key_that_mlflow_takes(name: str) -> None:
    key = schema.safe_key(name)
    _validate_param_name(key)
    _validate_metric_name(key)
    assert 0 < len(key) <= 250


@settings(max_examples=50)
@given(RECIPES)
def test_parameters_are_within_limits_for_any_recipe(recipe: dict[str, Any]) -> None:
    entries = schema.param_entries({**recipe, "long": "y" * 9000}, {"chosen": 0.1})
    assert entries["chosen"] == "0.1"
    assert max(map(len, entries.values())) == 6000
    assert not any(ord(c) < 32 and c not in "\t\n" for v in entries.values() for c in v)


def test_parameters_are_the_flat_recipe_and_what_was_chosen() -> None:
    recipe = {"optimizer": {"sgd": {"lr": 0.1, "nesterov": True}}, "epochs": 4, "seed": None}
    assert schema.param_entries(recipe, {"optimizer": "sgd"}) == {
        "optimizer.sgd.lr": "0.1",
        "optimizer.sgd.nesterov": "true",
        "epochs": "4",
        "seed": "null",
        "optimizer": "sgd",
    }


def test_what_ran_otherwise_stands_beside_what_was_proposed() -> None:
    proposed = schema.param_entries({"batch_size": 64, "epochs": 4}, {})
    assert schema.ran_entries({"batch_size": 32, "epochs": 4}, proposed) == {"ran.batch_size": "32"}
    assert schema.ran_entries({"batch_size": 64, "epochs": 4.0}, proposed) == {}


def test_curves_stand_at_steps_and_at_training_seconds() -> None:
    evaluation = make_evaluation(step=7, train_s=2.5, accuracy=0.5)
    points = schema.curve_points(evaluation, start_ms=1000)
    assert {(p.key, p.value) for p in points} == {
        ("accuracy", 0.5),
        ("macro_f1", 0.25),
        ("val_loss", 0.1),
        ("train_s", 2.5),
    }
    assert {(p.step, p.timestamp_ms) for p in points} == {(7, 3500)}


@pytest.mark.parametrize(("mode", "gap"), [("fixed_length", 0.1), ("anytime", 0.0)])
def test_the_gap_counts_the_last_or_the_best_evaluation(mode: str, gap: float) -> None:
    evaluations = (make_evaluation(step=1, accuracy=0.92), make_evaluation(step=2, accuracy=0.8))
    run = make_run().model_copy(update={"evaluations": evaluations})
    record = make_record(runs=(run,))
    record = record.model_copy(update={"workload": {**record.workload, "mode": mode}})
    assert schema.gap(record, run) == pytest.approx(gap)


def test_a_trial_without_an_evaluation_has_no_accuracy_and_no_gap() -> None:
    run = RunResult(status=Status.OOM, seed=0, stop_reason="out of memory")
    keys = {p.key for p in schema.record_points(make_record(runs=(run,)), start_ms=0)}
    assert {"accuracy", "gap", "final_accuracy", "time_to_target_s"}.isdisjoint(keys)
    assert {"reached", "train_s"} <= keys


def test_several_seeds_keep_their_metrics_apart() -> None:
    record = make_record(runs=(make_run(seed=1), make_run(seed=2)))
    keys = {p.key for p in schema.record_points(record, start_ms=0)}
    assert {"accuracy/seed_1", "accuracy/seed_2", "time_to_target_s/seed_2"} <= keys
    assert "accuracy" not in keys


def test_files_hold_the_whole_record() -> None:
    record = make_record()
    files = schema.artifact_files(record)
    assert yaml.safe_load(files["recipe.yaml"]) == record.recipe
    assert json.loads(files["environment.json"]) == record.environment
    assert TrialRecord.model_validate_json(files["record.json"]) == record


def test_secrets_reach_neither_tags_nor_files() -> None:
    run = make_run(Status.FAILED).model_copy(
        update={
            "traceback": "at http://me:hunter2@host/",
            "stop_reason": StopReason.model_validate("http://me:hunter2@host/"),
        }
    )
    record = make_record(status=Status.FAILED, runs=(run,), params={"url": "s3://k:hunter2@b"})
    record = record.model_copy(update={"environment": {"API_TOKEN": "hunter2", "torch": "2"}})
    written = {**schema.record_tags(record), **schema.artifact_files(record)}
    written |= schema.param_entries(record.recipe, record.params)
    assert "hunter2" not in json.dumps(written)
    assert written["tune_speed.env.torch"] == "2"
    reason = ProposalReason.model_validate("gain: 42% likely")
    proposed = record.model_copy(update={"proposal_reason": reason})
    assert schema.record_tags(proposed)[schema.PROPOSAL_REASON] == "gain: 42% likely"


def test_control_characters_are_replaced_and_long_texts_cut() -> None:
    assert schema.clean("a\x00b\ud800", limit=9) == "a�b?"
    assert schema.clean("abcdef", limit=4) == "abc…"


def metrics_of(record: TrialRecord) -> dict[str, float]:
    return {point.key: point.value for point in schema.record_points(record, start_ms=0)}


@settings(max_examples=30)
@given(first=records(), second=records())
def test_a_board_has_one_name(first: TrialRecord, second: TrialRecord) -> None:
    keys = [board_key(record) for record in (first, second)]
    names = [schema.board_id(key) for key in keys]
    assert (keys[0] == keys[1]) == (names[0] == names[1])


@settings(max_examples=30)
@given(record=records())
def test_the_facts_of_a_trial_come_back(record: TrialRecord) -> None:
    tags = schema.record_tags(record)
    whole = schema.unpack_record(tags)
    assert whole is not None
    assert schema.unpack_facts(tags) in (schema.facts_of(whole), None)


def test_favourites_come_back_with_their_board_in_their_order() -> None:
    plain = Recommended(study="s", trial_id="t0003", runs=1, hits=1, expected_s=2.5)
    flat = {"chance": 0.8, "chance_low": 0.5, "chance_high": 0.95}
    tree = {"study": "s", "trial_id": "t0001", "runs": 6, "hits": 5, **flat, "expected_s": 12.25}
    best = Recommended.model_validate(tree)
    assert best.chance == Interval(0.8, 0.5, 0.95)
    assert best.model_dump(mode="json", exclude_defaults=True) == tree
    key = board_key(make_record())
    for favourites in ((best, plain), (plain,), (plain, best)):
        tags = schema.pack_favourites(favourites, key)
        assert list(tags) == ["tune_speed.recommended"]
        assert schema.unpack_favourites(tags) == (schema.board_id(key), favourites)


def test_a_hundred_favourites_take_several_tags_and_fewer_later_leave_nothing_of_them() -> None:
    long = Recommended(study="s" * 100, trial_id="t123456", runs=1000, hits=999, expected_s=1 / 3)
    key = board_key(make_record())
    many = schema.pack_favourites([long] * 100, key)
    assert len(many) > 1 and max(map(len, many.values())) <= 5000
    assert schema.unpack_favourites(many) == (schema.board_id(key), (long,) * 100)
    fewer = many | schema.pack_favourites([long] * 2, key)
    assert schema.unpack_favourites(fewer) == (schema.board_id(key), (long,) * 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "{}",
        "null",
        "7",
        '"text"',
        '["board", 1]',
        '["board", {}]',
        '["board", {"trial_id": "t0001", "runs": "many", "hits": 1, "expected_s": 2.5}]',
        '["board", {"trial_id": "t0001", "runs": 1, "hits": 1, "expected_s": 2.5}',
    ],
)
def test_damaged_favourites_are_none(text: str) -> None:
    assert schema.unpack_favourites({schema.RECOMMENDED: text}) == ("", ())
    assert schema.unpack_favourites({}) == ("", ())


def test_what_its_search_cost_comes_back_with_a_certified_record() -> None:
    provenance = {"tuning_trials": 60, "tuning_device_s": 49.0, "chosen_by": "expected time"}
    certificate = {"verification": {"status": "re-timed"}, "provenance": provenance}
    record = make_record(kind="certified").model_copy(update={"certificate": certificate})
    back = schema.unpack_record(schema.pack_record(record))
    assert back is not None and back.certificate is not None
    assert back.certificate["provenance"] == {"tuning_trials": 60, "tuning_device_s": 49.0}


def test_settings_of_a_recipe_are_parameters_and_no_metrics() -> None:
    """Each number as a metric was a chart of one bar, before the first learning curve."""
    record = make_record()
    keys = {p.key for p in schema.record_points(record, start_ms=0)}
    assert not [key for key in keys if "batch_size" in key]
    assert schema.param_entries(record.recipe, record.params)["batch_size"] == "32"


def test_runs_rank_by_their_expected_time_and_misses_have_a_gap() -> None:
    one = metrics_of(make_record(time_s=3.0))
    assert one["expected_s"] == one["time_to_target_s"] == 3.0 and "n" not in one
    assert one["final_metric"] == one["final_accuracy"]
    hits = (make_run(time_s=1.0), make_run(time_s=3.0))
    several = metrics_of(make_record(runs=(*hits, make_run(Status.MISSED, time_s=6.0))))
    assert several["expected_s"] == (1.0 + 3.0 + 6.0) / 2
    assert (several["time_to_target_s"], several["hits"], several["n"]) == (3.0, 2.0, 3.0)
    half = metrics_of(make_record(runs=(make_run(), make_run(Status.MISSED, seed=1))))
    assert {"expected_s", "time_to_target_s"}.isdisjoint(half)
    assert (half["hits"], half["n"]) == (1.0, 2.0)
    missed = metrics_of(make_record(runs=(make_run(Status.MISSED, accuracy=0.85),)))
    assert "time_to_target_s" not in missed and missed["reached"] == 0.0
    assert missed["gap"] == pytest.approx(0.05)

import dataclasses
import html
import re
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import WORKLOAD, make_record, make_run

from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.stats import RunStatistics
from tune_speed.core.words import ProposalReason, StopReason
from tune_speed.tracking import schema
from tune_speed.tracking.writer import descriptions

NASTY = "<script>alert(1)</script> | `rm` *x* [a](javascript:b) _c_ #1 @you\n# title"
PLAN = descriptions.SearchPlan(
    study="digits",
    workload=WORKLOAD,
    workload_name="digits",
    searched={"optimizer.sgd.lr": "from 0.02 to 1.0 (log)", "epochs": "from 2 to 16"},
    command="tune-speed search digits_quickstart",
)


def table_of(text: str, name: str) -> list[list[str]]:
    """Returns the cells of the table whose first heading is `name`, headings left out."""
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {name} |"))
    rows = takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[html.unescape(cell.strip()) for cell in row.strip("|").split("|")] for row in rows]


def code_of(text: str) -> list[str]:
    return [line for block in text.split("```")[1::2] for line in block.strip("\n").split("\n")]


def test_a_trials_table_holds_what_was_searched() -> None:
    params: dict[str, Any] = {"optimizer": "sgd", "optimizer.sgd.lr": 0.125, "epochs": 4}
    text = descriptions.trial_note(make_record(params=params), run_id="a" * 32)
    assert table_of(text, "searched") == [[k, str(v)] for k, v in params.items()]
    assert code_of(text) == [f"tune-speed show {'a' * 32}", f"tune-speed train {'a' * 32}"]


@pytest.mark.parametrize("status", Status)
def test_a_trial_says_how_it_ended(status: Status) -> None:
    text = descriptions.trial_note(make_record(status=status, time_s=2.5), run_id="a" * 32)
    assert text.startswith(f"**{status.value}**")
    assert ("**2.5 s**" in text) == (status is Status.REACHED)
    assert f"Why it ended: ended as {status.value}." in text


def test_a_certified_trial_says_how_often_it_held() -> None:
    runs = tuple(make_run(time_s=float(s), seed=s) for s in range(1, 7))
    missed = (make_run(Status.MISSED, time_s=9.0, seed=7),)
    text = descriptions.trial_note(
        make_record(kind="certified", runs=runs + missed), run_id="a" * 32
    )
    assert "**6 of 7** runs met accuracy ≥ 0.9" in html.unescape(text)
    assert "Median 4 s" in text and "Expected with restarts 5 s" in text  # (21 + 9) / 6


@pytest.mark.parametrize("field", ["trial_id", "study", "device", "workload_name"])
def test_names_act_neither_as_markdown_nor_as_html(field: str) -> None:
    record = make_record(params={NASTY: NASTY}).model_copy(update={field: NASTY})
    run = record.runs[0].model_copy(update={"stop_reason": StopReason.model_validate(NASTY)})
    record = record.model_copy(
        update={"runs": (run,), "proposal_reason": ProposalReason.model_validate(NASTY)}
    )
    counts = {Status.REACHED: 1}
    for text in (
        descriptions.trial_note(record, run_id="a" * 32),
        descriptions.search_note(PLAN, statuses=counts, best=record, link="#/experiments/1/runs/a"),
    ):
        prose = "".join(text.split("```")[::2])
        assert "<" not in prose and "`" not in prose and "javascript:" not in prose
        assert "@" not in prose and "\n# title" not in prose
    assert table_of(descriptions.trial_note(record, run_id="a"), "searched") == [
        [" ".join(NASTY.split())] * 2
    ]


@given(st.text(max_size=400))
def test_any_text_reads_back_from_one_line(text: str) -> None:
    escaped = descriptions.plain(text)
    if text.isprintable():
        assert html.unescape(escaped) == " ".join(schema.clean(text, limit=300).split())
    without_entities = re.sub(r"&#\d+;", "", escaped)
    assert not set('<>|`*[]{}#@:!\\~$&"\n') & set(without_entities)
    assert not re.search(r"\b_|_\b|(?<=[\W_])_|^_", without_entities)


def test_a_description_fits_a_tag_and_keeps_its_commands() -> None:
    params = {f"model.block_{i}.width": "x" * 100 for i in range(200)}
    text = descriptions.trial_note(make_record(params=params), run_id="a" * 32)
    rows = table_of(text, "searched")
    assert len(text) <= 5000 and f"… and {200 - len(rows)} more" in text
    assert code_of(text)[0] == f"tune-speed show {'a' * 32}"
    assert "recipe.yaml" in text


def test_secrets_are_left_out() -> None:
    record = make_record(params={"url": "s3://me:hunter2@bucket"})
    plan = descriptions.SearchPlan(
        study="s", workload=WORKLOAD, workload_name="w", command="x --set a=b://u:hunter2@h"
    )
    assert "hunter2" not in descriptions.trial_note(record, run_id="a")
    assert "hunter2" not in descriptions.search_note(plan, statuses={}, best=None, link="")


def test_a_search_counts_its_trials_and_links_to_the_best() -> None:
    counts = {Status.REACHED: 3, Status.MISSED: 2, Status.OOM: 0}
    best = make_record("t0004", time_s=1.25)
    text = descriptions.search_note(PLAN, statuses=counts, best=best, link="#/experiments/1/runs/b")
    assert text.startswith("**5 trials finished**: 3 reached, 2 missed.")
    assert "[t0004](#/experiments/1/runs/b)" in text and "1.25 s" in text
    assert "tune-speed train study/t0004" in code_of(text)
    assert "tune-speed search digits_quickstart" in code_of(text)


def test_a_search_without_a_hit_says_so() -> None:
    text = descriptions.search_note(PLAN, statuses={Status.MISSED: 1}, best=None, link="")
    assert "None has met the target so far." in text and "tune-speed train" not in text


def test_a_studys_description_says_what_is_searched_and_how_to_read_it() -> None:
    text = descriptions.study_note(PLAN)
    assert "accuracy ≥ 0.9" in html.unescape(text)
    assert table_of(text, "searched") == [list(item) for item in PLAN.searched.items()]
    assert ["time_to_target_s", "s"] in [row[:2] for row in table_of(text, "metric")]
    assert "tune-speed leaderboard --study digits" in code_of(text)
    assert text.endswith(descriptions.OURS)


def own_loop(trial_id: str = "t0004") -> TrialRecord:
    workload = {**WORKLOAD, "function_hash": "f" * 16, "function": "train it"}
    return make_record(trial_id).model_copy(update={"workload": workload})


def test_a_training_function_s_trial_names_no_command_that_needs_a_recipe() -> None:
    record = own_loop()
    assert code_of(descriptions.trial_note(record, run_id="a")) == ["tune-speed show a"]
    text = descriptions.search_note(PLAN, statuses={Status.REACHED: 1}, best=record, link="")
    assert "Best: **t0004**, " in text and "with the file of the training function" in text
    assert "tune-speed certify study --train 'FILE.py:train it'" in code_of(text)
    assert "tune-speed train" not in text
    plan = dataclasses.replace(PLAN, workload=record.workload)
    assert code_of(descriptions.study_note(plan)) == ["tune-speed leaderboard --study digits"]
    assert len(code_of(descriptions.study_note(PLAN))) == 2


def test_a_search_without_a_command_names_none() -> None:
    plan = dataclasses.replace(PLAN, command="")
    text = descriptions.search_note(plan, statuses={}, best=None, link="")
    assert text.startswith("**0 trials finished**.") and code_of(text) == []
    assert table_of(text, "searched") == [list(item) for item in PLAN.searched.items()]


def test_a_certified_trial_has_the_intervals_of_its_statistics() -> None:
    runs = tuple(make_run(time_s=float(s), seed=s) for s in range(1, 7))
    record = make_record(kind="certified", runs=runs).model_copy(update={"evaluated_on": "test"})
    text = html.unescape(descriptions.trial_note(record, run_id="a"))
    found = RunStatistics.of(record)
    # Six runs: their range holds the median with 1 - 2 / 2^6 = 96.9 %.
    assert "on the test part. Median 3.5 s, 97% interval 1 s to 6 s." in text
    low_s, high_s = found.expected_interval.low_s, found.expected_interval.high_s
    assert f"restarts 3.5 s, 95% interval {low_s:.4g} s to {high_s:.4g} s." in text
    missed = make_record(kind="certified", runs=(make_run(Status.MISSED),) * 2)
    text = descriptions.trial_note(missed, run_id="a")
    assert "**0 of 2** runs" in text and "Median" not in text and "Expected" not in text
    few = make_record(kind="certified", runs=(make_run(time_s=2.0), make_run(Status.MISSED)))
    text = descriptions.trial_note(few, run_id="a")
    assert "Expected with restarts 3 s, no interval from so few runs." in html.unescape(text)


def test_a_trial_says_its_metric_and_target_and_why_it_was_tried() -> None:
    record = make_record(status=Status.MISSED).model_copy(
        update={"proposal_reason": ProposalReason.model_validate("a guess")}
    )
    text = html.unescape(descriptions.trial_note(record, run_id="a"))
    assert "**missed**; final accuracy 0.9500 (target: accuracy ≥ 0.9)." in text
    assert "Why it was tried: a guess." in text
    bare = make_run().model_copy(update={"evaluations": ()})
    unseen = make_record().model_copy(update={"runs": (bare,)})
    nothing = descriptions.trial_note(unseen, run_id="a")
    assert "**reached** in **1 s**; no evaluation" in nothing
    assert "Why it was tried" not in nothing


def test_an_interrupted_trial_says_why_and_what_comes_next() -> None:
    assert descriptions.interrupted_note("Ctrl-C") == (
        "**interrupted**: Ctrl-C. Resuming the study runs the trial again."
    )


def test_a_model_s_lines_say_what_it_takes_and_load_it() -> None:
    text = descriptions.model_lines("models:/m-1", accuracy=0.98765, part="test", shape=(3, 8, 9))
    assert "accuracy 0.9877 on the test part" in text and "uint8 (N, 3, 8, 9)" in text
    assert code_of(text)[-1] == 'model = mlflow.pytorch.load_model("models:/m-1")'


def test_commands_stay_in_their_block_whatever_they_hold() -> None:
    plan = dataclasses.replace(PLAN, command="tune-speed search 'a```b\nc'")
    text = descriptions.search_note(plan, statuses={}, best=None, link="")
    assert code_of(text) == ["tune-speed search 'a'''b c'"]

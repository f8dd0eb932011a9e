import dataclasses
import html
import re
from collections.abc import Callable
from itertools import takewhile

import pytest
from helpers.making import WORKLOAD, make_record, make_run
from hypothesis import given
from hypothesis import strategies as st

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


OWN = make_record("t0004").model_copy(
    update={"workload": {**WORKLOAD, "function_hash": "f" * 16, "function": "train it"}}
)
SIX = tuple(make_run(time_s=float(s), seed=s) for s in range(1, 7))
BARE = make_run().model_copy(update={"evaluations": ()})
MISS = make_run(Status.MISSED, time_s=9.0, seed=7)
TRIALS: dict[str, TrialRecord] = {
    **{status.value: make_record(status=status, time_s=2.5) for status in Status},
    "searched": make_record(params={"optimizer": "sgd", "optimizer.sgd.lr": 0.125, "epochs": 4}),
    "proposed": make_record().model_copy(update={"proposal_reason": "a guess"}),
    "not evaluated": make_record().model_copy(update={"runs": (BARE,)}),
    "certified": make_record(kind="certified", runs=SIX).model_copy(
        update={"evaluated_on": "test"}
    ),
    "six of seven": make_record(kind="certified", runs=(*SIX, MISS)),
    "one of two": make_record(kind="certified", runs=(make_run(time_s=2.0), MISS)),
    "none of two": make_record(kind="certified", runs=(MISS, MISS)),
    "own loop": OWN,
}
COUNTS = {Status.REACHED: 3, Status.MISSED: 2, Status.OOM: 0}
SEARCHES: dict[str, str] = {
    "best": descriptions.search_note(
        PLAN, statuses=COUNTS, best=make_record("t0004", time_s=1.25), link="#/experiments/1/runs/b"
    ),
    "no hit": descriptions.search_note(PLAN, statuses={Status.MISSED: 1}, best=None, link=""),
    "no command": descriptions.search_note(
        dataclasses.replace(PLAN, command=""), statuses={}, best=None, link=""
    ),
    "own loop": descriptions.search_note(PLAN, statuses={Status.REACHED: 1}, best=OWN, link=""),
    "fence": descriptions.search_note(
        dataclasses.replace(PLAN, command="tune-speed search 'a```b\nc'"),
        statuses={},
        best=None,
        link="",
    ),
    "study": descriptions.study_note(PLAN),
    "study of an own loop": descriptions.study_note(
        dataclasses.replace(PLAN, workload=OWN.workload)
    ),
    "interrupted": descriptions.interrupted_note("Ctrl-C"),
    "model": descriptions.model_lines(
        "models:/m-1", score="accuracy 0.9877", part="test", shape=(3, 8, 9)
    ),
}


@pytest.mark.parametrize("name", TRIALS)
def test_note_of_a_trial(name: str, kept_text: Callable[[str], None]) -> None:
    kept_text(html.unescape(descriptions.trial_note(TRIALS[name], run_id="a" * 32)))


@pytest.mark.parametrize("name", SEARCHES)
def test_note_of_a_search_or_a_study(name: str, kept_text: Callable[[str], None]) -> None:
    kept_text(html.unescape(SEARCHES[name]))


def test_a_certified_trial_has_the_intervals_of_its_statistics() -> None:
    text = html.unescape(descriptions.trial_note(TRIALS["certified"], run_id="a"))
    found = RunStatistics.of(TRIALS["certified"])
    low_s, high_s = found.expected_interval.low_s, found.expected_interval.high_s
    assert f"restarts 3.5 s, 95% interval {low_s:.4g} s to {high_s:.4g} s." in text


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

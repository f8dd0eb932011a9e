from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import pytest
from helpers.making import WORKLOAD, make_record, make_run
from helpers.reporting.pages import viewed

from tune_speed.core.records import Recommended, RunResult, Status, TrialRecord
from tune_speed.core.stats import mean_interval
from tune_speed.core.text import Interval
from tune_speed.reporting.leaderboard.history import history_markdown, record_history
from tune_speed.reporting.leaderboard.ranking import Board, make_boards
from tune_speed.reporting.leaderboard.tables import as_markdown
from tune_speed.reporting.leaderboard.text import caption
from tune_speed.reporting.page.answer import answer_of
from tune_speed.reporting.trials.text import describe

TARGET = {"metric": "accuracy", "value": 0.001, "within_s": 60.0}


def record(number: int, *ends: float, time_s: float = 50.0, **fields: Any) -> TrialRecord:
    runs = tuple(make_run(time_s=time_s, accuracy=end, seed=n) for n, end in enumerate(ends))
    made = make_record(f"t{number:04d}", runs=runs, params={"lr": number}, **fields)
    return made.model_copy(update={"workload": {**WORKLOAD, "target": TARGET}})


def board_of(*records: TrialRecord, **options: Any) -> Board:
    (board,) = make_boards([(None, each) for each in records], **options)
    return board


def test_rows_are_ranked_by_the_metric_and_not_by_the_time() -> None:
    board = board_of(record(0, 0.8, time_s=1.0), record(1, 0.9), record(2, 0.85, time_s=59.0))
    assert [row.trial_id for row in board.rows] == ["t0001", "t0002", "t0000"]
    assert [row.place for row in board.rows] == ["1", "2", "3"]
    assert board.goal == "best accuracy within 60 s"


def test_runs_of_one_configuration_count_by_their_mean_with_its_interval() -> None:
    ends = (0.80, 0.84, 0.82, 0.86)
    runs = [record(n, end) for n, end in enumerate(ends)]
    same = [each.model_copy(update={"params": {"lr": 9}}) for each in runs]
    row = board_of(*same, record(5, 0.9)).rows[1]
    known = mean_interval(ends, is_share=True)
    found = row.mean_metric, row.mean_metric_low, row.mean_metric_high
    assert (found, row.n) == (astuple(known), 4)


def test_lucky_runs_come_after_what_the_search_recommends() -> None:
    lucky, sure = record(0, 0.95), record(1, 0.93)
    own = {"study": "study", "runs": 1, "hits": 1, "expected_s": 50.0}
    known = (
        Recommended(trial_id="t0001", metric=Interval(0.92, 0.91, 0.93), **own),
        Recommended(trial_id="t0000", metric=Interval(0.90, 0.86, 0.905), **own),
    )
    favourites = {board_of(lucky, sure).key: known}
    board = board_of(lucky, sure, favourites=favourites)
    assert [(row.trial_id, row.place) for row in board.rows] == [("t0001", "1"), ("t0000", "2")]
    assert "another is expected to end at 0.9200 (0.9100 to 0.9300)" in caption(board)


def ended(record: TrialRecord, minute: int) -> TrialRecord:
    return record.model_copy(update={"finished_at": f"2026-01-01T00:{minute:02d}:00.000+00:00"})


def test_history_is_one_of_the_metric_and_not_of_the_time() -> None:
    """By hand: of means 0.80, 0.79, 0.94 and 0.94 the first and the third are records."""
    ends = [(0.80, 0.80, 0.80), (0.79,), (0.93, 0.94, 0.95), (0.94,)]
    runs = [ended(record(n, *e, time_s=50.0 - n), n) for n, e in enumerate(ends)]
    first, second = record_history([*runs[::-1], ended(late(4), 5)])
    assert (first.trial_id, second.trial_id) == ("t0000", "t0002")
    assert first.mean_metric == pytest.approx(0.80)
    assert (first.metric_gain, first.is_clear) == (None, None)
    assert second.metric_gain == pytest.approx(0.14) and second.is_clear
    assert first.held_until == second.held_from
    assert (second.gained_s, second.speedup, second.within_s) == (None, None, 60.0)
    shown = history_markdown([first, second])
    assert "best accuracy within 60 s" in shown and "0.9400 (0.9" in shown and "0.1400 " in shown
    assert "time [s]" not in shown


def test_a_single_run_that_ended_better_may_be_luck_and_less_of_a_loss_is_better() -> None:
    assert not record_history([ended(record(0, 0.8), 0), ended(record(1, 0.9), 1)])[1].is_clear
    loss = {"metric": "loss", "value": 2.0, "mode": "min", "within_s": 60.0}
    spread = [(0.50, 0.51, 0.52), (0.60, 0.60, 0.60), (0.30, 0.31, 0.32)]
    found = []
    for number, ends in enumerate(spread):
        made = ended(record(number, *ends), number)
        runs = tuple(with_loss(run, end) for run, end in zip(made.runs, ends, strict=True))
        workload = {**WORKLOAD, "target": loss}
        found.append(made.model_copy(update={"runs": runs, "workload": workload}))
    first, second = record_history(found)
    assert (first.trial_id, second.trial_id, second.is_clear) == ("t0000", "t0002", True)
    assert second.metric_gain == pytest.approx(0.2)


def with_loss(run: RunResult, loss: float) -> RunResult:
    final = run.evaluations[-1].model_copy(update={"loss": loss})
    return run.model_copy(update={"evaluations": (*run.evaluations[:-1], final)})


def late(number: int) -> TrialRecord:
    made = record(number, 0.99)
    capped = {"status": Status.CAPPED, "time_to_target_s": None}
    run = made.runs[0].model_copy(update=capped)
    return made.model_copy(update={"status": Status.CAPPED, "runs": (run,)})


GAIN = {"status": "re-timed", "incumbent": "study/t0001", "metric_gain": 0.012}
CERTIFICATE = {"verification": {**GAIN, "p_value": 0.01, "adjusted_p_value": 0.02}}
CERTIFIED = record(0, 0.9, 0.92, 0.94, kind="certified").model_copy(
    update={"certificate": CERTIFICATE}
)
SHOWN = {
    "estimates": [record(0, 0.8, time_s=1.0), record(1, 0.9)],
    "one too late": [late(0), record(1, 0.5)],
    "certified": [record(0, 0.9), CERTIFIED],
}


@pytest.mark.parametrize("name", SHOWN)
def test_tables_answers_and_trials_speak_of_the_metric(
    name: str, kept_text: Callable[[str, str], None]
) -> None:
    view = viewed(SHOWN[name])
    kept_text(as_markdown(view.boards), "boards")
    (part,) = view.parts
    found = answer_of(part, view.boards)
    said = f"{found.verdict}, {found.lead}: {found.figure} {found.claim}"
    kept_text("\n".join([said, *found.sure]), "answer")
    last = describe(SHOWN[name][-1], run_id=None).splitlines()
    kept_text("\n".join(last[:4]), "trial")

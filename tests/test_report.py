import csv
import io
import json

from making import make_record
from rich.console import Console

from tune_speed import report
from tune_speed.leaderboard import Board, make_boards
from tune_speed.records import Status


def boards() -> list[Board]:
    trials = [make_record(f"t{i:04d}", time_s=1.0 + i) for i in range(3)]
    return make_boards((f"run{i}", record) for i, record in enumerate(trials))


def shown(boards: list[Board]) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(report.as_renderable(boards))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_json_holds_unrounded_figures() -> None:
    rows = json.loads(report.as_json(boards()))[0]["rows"]
    assert [row["time_to_target_s"] for row in rows] == [1.0, 2.0, 3.0]
    assert rows[0]["params"] == {"optimizer.sgd.lr": 0.1}


def test_csv_has_a_line_a_row_and_names_every_field() -> None:
    lines = list(csv.DictReader(io.StringIO(report.as_csv(boards()))))
    assert [line["trial_id"] for line in lines] == ["t0000", "t0001", "t0002"]
    assert lines[0]["device"] == "cpu (1 threads, test)"
    assert json.loads(lines[0]["params"]) == {"optimizer.sgd.lr": 0.1}


def test_markdown_is_a_table_with_a_header() -> None:
    lines = report.as_markdown(boards()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 5
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_table_names_device_target_and_trust() -> None:
    text = shown(boards())
    assert "accuracy ≥ 0.9" in text
    assert "cpu (1 threads, test)" in text
    assert "Estimates from a search" in text


def test_markup_in_names_is_shown_as_it_is() -> None:
    record = make_record(study="[red]<script>alert(1)</script>")
    evil = make_boards([(None, record)])
    assert "[red]<script>" in shown(evil)
    assert "<script>" not in report.as_markdown(evil).replace("\\<", "")


def test_board_without_hits_says_so() -> None:
    missed = make_boards([(None, make_record("t0000", Status.MISSED))])
    assert "none of 1 trials met the target" in shown(missed)


def test_no_boards_say_that_nothing_is_there_yet() -> None:
    assert "No trial met its target yet" in shown([])

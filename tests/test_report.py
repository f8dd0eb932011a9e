import csv
import io
import json

from making import make_record, make_run
from rich.console import Console

from tune_speed import report
from tune_speed.leaderboard import Board, make_boards
from tune_speed.records import Status, Timing


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


def certified_boards() -> list[Board]:
    verification = {
        "status": "re-timed",
        "incumbent": "study/t0001",
        "speedup": 1.25,
        "p_value": 0.01,
        "adjusted_p_value": 0.02,
    }
    runs = tuple(make_run(time_s=1.0 + i / 10, seed=i) for i in range(6))
    record = make_record(runs=runs).model_copy(
        update={"kind": "certified", "certificate": {"verification": verification}}
    )
    return make_boards([(None, record), (None, make_record("t0001"))])


def test_certified_rows_have_a_board_and_columns_of_their_own() -> None:
    certified, estimates = certified_boards()
    assert (certified.kind, estimates.kind) == ("certified", "estimate")
    text = shown([certified])
    assert "1.25 (" in text  # expected time, which is the mean where all hit
    assert "6/6" in text and "1.25×, p = 0.02, study/t0001" in text
    assert "faster than" not in shown([estimates])


def test_what_the_clock_is_made_of_is_said() -> None:
    record = make_record()
    isolated = record.runs[0].model_copy(update={"timing": Timing.ISOLATED})
    board = make_boards([(None, record.model_copy(update={"runs": (isolated,)}))])
    assert "steps × isolated step time" in shown(board)
    assert "SHARED" in shown(make_boards([(None, record)]))


def test_listing_as_markdown_keeps_its_columns_whatever_is_in_a_cell() -> None:
    rows = [{"name": "a|b", "about": "two\nlines"}, {"name": "c", "about": None}]
    assert report.rows_as_markdown(rows).splitlines() == [
        "| name | about |",
        "| --- | --- |",
        "| a\\|b | two lines |",
        "| c |  |",
    ]


def test_listing_as_csv_reads_back() -> None:
    rows = [{"name": "a,b", "about": 'with "quotes"\nand a line'}]
    assert list(csv.DictReader(io.StringIO(report.rows_as_csv(rows)))) == rows

import csv
import io
import json

import pandas as pd
from hypothesis import example, given, settings
from hypothesis import strategies as st
from making import make_record, make_run
from rich.console import Console

from tune_speed.core.records import NOT_CERTIFIED, Status, Timing
from tune_speed.core.words import read_notes
from tune_speed.reporting.leaderboard import tables
from tune_speed.reporting.leaderboard import text as report
from tune_speed.reporting.leaderboard.ranking import Board, Row, make_boards
from tune_speed.reporting.leaderboard.tables import as_renderable
from tune_speed.reporting.table import Table

NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)


def boards() -> list[Board]:
    trials = [make_record(f"t{i:04d}", time_s=1.0 + i) for i in range(3)]
    return make_boards((f"run{i}", record) for i, record in enumerate(trials))


def shown(boards: list[Board]) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(as_renderable(boards))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_json_holds_unrounded_figures() -> None:
    rows = json.loads(tables.as_json(boards()))[0]["rows"]
    assert [row["time_to_target_s"] for row in rows] == [1.0, 2.0, 3.0]
    assert rows[0]["params"] == {"optimizer.sgd.lr": 0.1}


def test_csv_has_a_line_a_row_and_names_every_field() -> None:
    lines = list(csv.DictReader(io.StringIO(tables.as_csv(boards()))))
    assert [line["trial_id"] for line in lines] == ["t0000", "t0001", "t0002"]
    assert lines[0]["device"] == "cpu (1 threads, test)"
    assert json.loads(lines[0]["params"]) == {"optimizer.sgd.lr": 0.1}


def test_markdown_is_a_table_with_a_header() -> None:
    lines = tables.as_markdown(boards()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 5
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_table_names_device_target_and_trust() -> None:
    text = shown(boards())
    assert "accuracy ≥ 0.9" in text
    assert "cpu (1 thread, test)" in text
    assert "Estimates from a search" in text


def test_markup_in_names_is_shown_as_it_is() -> None:
    record = make_record(study="[red]<script>alert(1)</script>")
    evil = make_boards([(None, record)])
    assert "[red]<script>" in shown(evil)
    assert "<script>" not in tables.as_markdown(evil).replace("\\<", "")


def test_board_without_hits_says_so() -> None:
    missed = make_boards([(None, make_record("t0000", Status.MISSED))])
    assert "none of 1 trial met the target" in shown(missed)


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


def test_certified_rows_that_strangers_disturbed_are_called_so_and_only_they() -> None:
    certified = certified_boards()[0]
    said = {"timing": "disturbed, exclusive", "verification": NOT_CERTIFIED}
    rows = [row.model_copy(update=said) for row in certified.rows]
    disturbed = certified.model_copy(update={"rows": tuple(rows)})
    text = " ".join(shown([disturbed]).split())
    assert "disturbed, exclusive" in text and "disturbed runs of 1 row" in text
    assert "timing" not in tables.told(certified, tables.PAGE["certified"])
    assert "timing" in tables.told(disturbed, tables.PAGE["certified"])


def test_what_the_clock_is_made_of_is_said() -> None:
    record = make_record()
    isolated = record.runs[0].model_copy(update={"timing": Timing.ISOLATED})
    board = make_boards([(None, record.model_copy(update={"runs": (isolated,)}))])
    assert "steps × isolated step time" in shown(board)
    assert "SHARED" in shown(make_boards([(None, record)]))


def test_rows_whose_step_times_changed_say_from_what_and_others_have_no_such_column() -> None:
    said = "49.2 → 40.7 ms a step, by 2 windows"
    run = make_run().model_copy(update={"note": read_notes(f"loader is slow; re-clocked: {said}")})
    changed = make_boards([(None, make_record(runs=(run,))), (None, make_record("t0001"))])
    assert [row.reclocked for row in changed[0].rows] == [said, ""]
    assert "Re-clocked by all windows, as `show` says: 1 row." in " ".join(shown(changed).split())
    assert said in tables.as_markdown(changed)
    assert tables.told(changed[0], tables.PAGE["estimate"])[-2:] == ["reclocked", tables.SEARCH]
    assert "reclocked" not in tables.told(boards()[0], tables.PAGE["estimate"])


def test_listing_as_markdown_keeps_its_columns_whatever_is_in_a_cell() -> None:
    rows = [{"name": "a|b", "about": "two\nlines"}, {"name": "c", "about": None}]
    assert Table.of_rows(rows).markdown(verbatim=True).splitlines() == [
        "| name | about |",
        "| --- | --- |",
        "| a\\|b | two lines |",
        "| c |  |",
    ]


def test_listing_as_csv_reads_back() -> None:
    rows = [{"name": "a,b", "about": 'with "quotes"\nand a line'}]
    assert list(csv.DictReader(io.StringIO(Table.of_rows(rows).csv()))) == rows


def test_ties_are_told_in_every_form() -> None:
    tied = make_boards((None, make_record(f"t{i:04d}")) for i in range(2))
    assert [row["rank"] for row in json.loads(tables.as_json(tied))[0]["rows"]] == [1, 1]
    assert all(row["tied"] is True for row in json.loads(tables.as_json(tied))[0]["rows"])
    lines = list(csv.DictReader(io.StringIO(tables.as_csv(tied))))
    assert [(line["rank"], line["tied"]) for line in lines] == [("1", "True")] * 2
    assert tables.as_markdown(tied).count("| 1= |") == 2
    assert "Ranks with = are shared" in report.caption(tied[0])
    assert "Ranks with =" not in report.caption(boards()[0])


def test_caption_counts_trials_and_what_they_took() -> None:
    trials = [(None, make_record("t0000")), (None, make_record("t0001", Status.MISSED))]
    text = report.caption(make_boards(trials)[0])
    assert "1 configuration shown; 1 of 2 trials met the target, and all took 2 s of" in text
    assert "2 s of training and 4 device-seconds" in text


def test_a_condition_stands_in_the_title() -> None:
    board = make_boards([(None, make_record())], where="batch_size>=512")[0]
    assert report.title(board).endswith(", where batch_size>=512")
    assert "1 of 1 trial that the condition holds for" in report.caption(board)


def test_fields_of_board_and_row_have_different_names() -> None:
    header = tables.as_csv(boards()).splitlines()[0].split(",")
    assert len(set(header)) == len(header) == len(Board.model_fields) - 3 + len(Row.model_fields)


@settings(max_examples=40)
@example([("\r", 'a\r\n,"', True)])
@given(st.lists(st.tuples(NAMES, NAMES, st.booleans()), min_size=1, max_size=4))
def test_csv_reads_back_with_pandas(trials: list[tuple[str, str, bool]]) -> None:
    records = [
        make_record(
            f"t{number:04d}",
            Status.REACHED if is_hit else Status.FAILED,
            study=study,
            device=device,
            params={device: study, "lr": 0.1 / 3},
        )
        for number, (study, device, is_hit) in enumerate(trials)
    ]
    made = make_boards(((None, record) for record in records), with_misses=True)
    read = pd.read_csv(io.StringIO(tables.as_csv(made), newline=""), dtype=str, na_filter=False)
    rows = [(board, row) for board in made for row in board.rows]
    for (board, row), (_, line) in zip(rows, read.iterrows(), strict=True):
        assert (line["device"], line["study"]) == (board.device, row.study)
        assert line["rank"] == ("" if row.rank is None else str(row.rank))
        assert json.loads(line["params"]) == row.params
        assert line["expected_s"] == ("" if row.expected_s is None else repr(row.expected_s))


def test_csv_has_numbers_where_pandas_expects_them() -> None:
    read = pd.read_csv(io.StringIO(tables.as_csv(boards())))
    assert read["rank"].tolist() == [1, 2, 3]
    assert read["expected_s"].tolist() == [1.0, 2.0, 3.0]
    assert read["tied"].tolist() == [False] * 3


def test_time_of_one_run_stands_without_an_interval_that_says_nothing() -> None:
    assert report.interval_text(45.56, 0.0, None) == "45.56"
    assert report.interval_text(45.56, 0.53, None) == "45.56 (0.53–∞)"
    assert report.interval_text(None, 0.0, None) == "∞"

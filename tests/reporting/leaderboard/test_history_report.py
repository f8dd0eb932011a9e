import csv
import io
import json
from collections.abc import Callable

import pytest
from helpers.making import make_record
from rich.console import Console

from tune_speed.core.records import TrialRecord
from tune_speed.reporting.leaderboard.history import (
    RecordHeld,
    history_csv,
    history_markdown,
    history_renderable,
    record_history,
)
from tune_speed.reporting.leaderboard.tables import as_json


def finished(at: str, time_s: float, *, study: str = "study") -> TrialRecord:
    record = make_record(time_s=time_s, study=study)
    return record.model_copy(update={"finished_at": f"2026-01-{at}:00.000+00:00"})


def history(study: str = "study") -> tuple[RecordHeld, ...]:
    ends = {"01T10:00": 8.0, "01T10:45": 4.0, "03T12:45": 2.0}
    return record_history(finished(at, time_s, study=study) for at, time_s in ends.items())


def drawn(held: tuple[RecordHeld, ...], *, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(history_renderable(held))
    return captured.get()


def test_json_holds_every_field() -> None:
    held = json.loads(as_json(history()))
    assert [row["gained_s"] for row in held] == [None, 4.0, 2.0]
    assert held[0]["params"] == {"optimizer.sgd.lr": 0.1}


def test_csv_has_a_line_a_record_and_a_header_even_if_there_is_none() -> None:
    lines = list(csv.DictReader(io.StringIO(history_csv(history()))))
    assert [line["expected_s"] for line in lines] == ["8.0", "4.0", "2.0"]
    assert json.loads(lines[0]["params"]) == {"optimizer.sgd.lr": 0.1}
    assert history_csv(()).splitlines() == [",".join(RecordHeld.model_fields)]


def test_names_are_neither_markup_nor_html() -> None:
    evil = history("[red]<script>alert(1)</script>\x1b[31m|")
    assert "[red]<script>" in drawn(evil, width=200) and "\x1b" not in drawn(evil)
    assert "<script>" not in history_markdown(evil).replace("\\<", "")


@pytest.mark.parametrize("held", [history(), ()], ids=["three", "none"])
def test_history_as_people_read_it(
    held: tuple[RecordHeld, ...], kept_text: Callable[[str, str], None]
) -> None:
    kept_text("\n".join(line.rstrip() for line in drawn(held).splitlines()), "terminal")
    kept_text(history_markdown(held), "markdown")

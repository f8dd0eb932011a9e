import csv
import io

from rich.console import Console
from rich.text import Text

from tune_speed.reporting.table import Column, Section, Table, as_text, fitting

TABLE = Table(
    [Column("name", is_left=True), Column("time [s]")],
    [("a|b", 1.23456), Section("slow"), ("<b>", None), (Text("c"), 2)],
)


def test_terminal_shows_sections_and_four_digits() -> None:
    lines = as_text(TABLE).splitlines()
    assert lines[0].split() == ["name", "time", "[s]"]
    assert [line.split() for line in lines[2:] if "─" not in line and line.strip()] == [
        ["a|b", "1.235"],
        ["slow"],
        ["<b>"],
        ["c", "2"],
    ]


def test_terminal_obeys_no_cell() -> None:
    assert "\x1b" not in as_text(Table.of_rows([{"\x1b[1mname": "\x1b[2J"}]))


def test_html_escapes_names() -> None:
    html = TABLE.html()
    assert "&lt;b&gt;" in html and "<b>" not in html
    assert html.count("<tr>") == 5 and html.count("text-align: left") == 5


def test_csv_is_unrounded_and_without_sections() -> None:
    read = list(csv.reader(io.StringIO(TABLE.csv())))
    assert read == [["name", "time [s]"], ["a|b", "1.23456"], ["<b>", ""], ["c", "2"]]


def test_markdown_escapes_cells_unless_they_are_markdown() -> None:
    assert TABLE.markdown().splitlines()[2:] == [
        "| a\\|b | 1.23456 |",
        "| slow |  |",
        "| \\<b\\> |  |",
        "| c | 2 |",
    ]
    assert TABLE.markdown(verbatim=True).splitlines()[4] == "| <b> |  |"


def test_table_without_rows_has_its_headings() -> None:
    empty = Table.of_columns({"a": [], "b": []})
    assert empty.csv() == "a,b\n"
    assert empty.markdown() == "| a | b |\n| --- | --- |"


def test_first_table_that_fits_is_taken_else_the_last() -> None:
    tables = [Table.of_rows([{"x": "y" * width}]) for width in (50, 20, 10)]
    for width, chosen in ((60, 0), (30, 1), (5, 2)):
        console = Console(width=width, file=io.StringIO())
        assert fitting(tables, console, console.options) == chosen

"""One table with four outputs: for a terminal, as HTML, as CSV and as Markdown."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup, escape
from rich import box, table
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from tune_speed.core.text import printable, printable_lines


class PlainConsole(Console):
    """Draws tables, colours and moving lines; of the texts in them, only what is printable."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields what is drawn, with a mark for each character that a terminal would obey."""
        for segment in super().render(renderable, options):
            # rich's own control segments move the cursor; only texts come from others.
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)


# Characters of a line of text where there is no terminal.
WIDTH = 100


def as_text(renderable: RenderableType, *, width: int = WIDTH) -> str:
    out = io.StringIO()
    # In a notebook rich shows a console below the cell unless `force_jupyter` is False.
    console = PlainConsole(
        file=out, width=width, color_system=None, force_terminal=False, force_jupyter=False
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")


def html_text(text: str) -> Markup:
    return Markup("<pre>{}</pre>").format(printable_lines(text))


def html_line(text: str, *, tag: str = "p") -> Markup:
    return Markup("<{}>{}</{}>").format(tag, printable_lines(text), tag)


def html_block(*parts: Markup | str) -> str:
    """Returns the parts as one element; what is no markup is escaped."""
    inner = Markup("").join(escape(part) for part in parts)
    return str(Markup("<div>{}</div>").format(inner))


# Characters of a line, to measure a table's own width.
UNLIMITED = 100_000


class Column(NamedTuple):
    """A column; cells and heading are flush right unless `is_left`. Widths are in characters."""

    heading: str
    is_left: bool = False
    min_width: int | None = None
    max_width: int | None = None
    no_wrap: bool = False
    """Whether cells are never folded."""


class Section(NamedTuple):
    """Divides the rows: a rule in a terminal, then this heading where there is one."""

    heading: str = ""


class Table:
    """Rows of cells under headings; rich prints it as it is.

    A cell is a text, a number or None, or for colours a `rich.text.Text`. Numbers are rounded to
    four digits for terminals and HTML, unrounded in CSV and Markdown. Names in cells are anybody's:
    a terminal shows what is printable of them, HTML and Markdown escape them.
    """

    def __init__(
        self, columns: Iterable[Column], rows: Iterable[Sequence[Any] | Section], *, title: str = ""
    ) -> None:
        self.columns, self.rows, self.title = tuple(columns), tuple(rows), title

    @classmethod
    def of_columns(
        cls, columns: Mapping[str, Sequence[Any]], *, left: Iterable[str] = ()
    ) -> "Table":
        """Returns the table of columns by heading; those of `left` are flush left."""
        names = tuple(left)
        heads = (Column(heading, heading in names) for heading in columns)
        return cls(heads, zip(*columns.values(), strict=True))

    @classmethod
    def of_rows(
        cls,
        rows: Sequence[Mapping[str, Any]],
        *,
        left: Iterable[str] | None = None,
        title: str = "",
    ) -> "Table":
        """Returns the table of rows of the same names; None for `left`: all are flush left."""
        names = tuple(rows[0] if rows else ()) if left is None else tuple(left)
        heads = (Column(name, name in names) for name in (rows[0] if rows else ()))
        return cls(heads, (tuple(row.values()) for row in rows), title=title)

    def __rich__(self) -> table.Table:
        shown = table.Table(
            title=Text(printable(self.title)) if self.title else None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            collapse_padding=True,
            show_edge=False,
            pad_edge=False,
        )
        for column in self.columns:
            justify: JustifyMethod = "left" if column.is_left else "right"
            shown.add_column(
                Text(column.heading, justify=justify),
                justify=justify,
                # A figure that is cut without a mark would read as another one.
                overflow="ellipsis" if column.no_wrap else "fold",
                min_width=column.min_width,
                max_width=column.max_width,
                no_wrap=column.no_wrap,
            )
        for row in self.rows:
            if isinstance(row, Section):
                # rich draws no rule above the first row.
                shown.add_section()
                if row.heading:
                    shown.add_row(Text(row.heading, style="italic"))
            else:
                cells = (c if isinstance(c, Text) else printable_lines(_rounded(c)) for c in row)
                shown.add_row(*(Text(c) if isinstance(c, str) else c for c in cells))
        return shown

    def html(self) -> Markup:
        head = self._html_row("th", [column.heading for column in self.columns])
        body = Markup("").join(self._html_row("td", cells) for cells in self._cells())
        return Markup("<table><thead>{}</thead><tbody>{}</tbody></table>").format(head, body)

    def csv(self) -> str:
        """Returns the headings and a line a row, without sections."""
        lines = [[column.heading for column in self.columns]]
        lines += [list(row) for row in self.rows if not isinstance(row, Section)]
        # Only what its own line ends hold does the writer quote: with "\n" alone, no "\r".
        texts = []
        for line in lines:
            out = io.StringIO(newline="")
            csv.writer(out, lineterminator="\r\n").writerow(line)
            texts.append(out.getvalue().removesuffix("\r\n") + "\n")
        return "".join(texts)

    def markdown(self, *, verbatim: bool = False) -> str:
        """Returns a GitHub table; `verbatim`: cells and headings are Markdown themselves."""
        lines = [[column.heading for column in self.columns], *self._cells()]
        plain = [["" if cell is None else str(cell) for cell in line] for line in lines]
        if verbatim:
            texts = [[c.replace("|", "\\|").replace("\n", " ") for c in line] for line in plain]
        else:
            texts = [list(map(escape_markdown, line)) for line in plain]
        rule = ["---"] * len(self.columns)
        return "\n".join(f"| {' | '.join(line)} |" for line in [texts[0], rule, *texts[1:]])

    def _cells(self) -> Iterator[Sequence[Any]]:
        """Yields the rows; a section's heading is the first cell of a row of its own."""
        for row in self.rows:
            if not isinstance(row, Section):
                yield row
            elif row.heading:
                yield [row.heading, *[None] * (len(self.columns) - 1)]

    def _html_row(self, tag: str, cells: Iterable[Any]) -> Markup:
        parts = [
            Markup('<{} style="text-align: {}">{}</{}>').format(
                tag, "left" if column.is_left else "right", printable_lines(_rounded(cell)), tag
            )
            for cell, column in zip(cells, self.columns, strict=True)
        ]
        return Markup("<tr>{}</tr>").format(Markup("").join(parts))


def fitting(tables: Sequence[RenderableType], console: Console, options: ConsoleOptions) -> int:
    """Returns the index of the first of `tables` that fits, the widest first; else the last."""
    unlimited = options.update(width=UNLIMITED)
    widths = [Measurement.get(console, unlimited, each).maximum for each in tables]
    fits = [number for number, width in enumerate(widths) if width <= options.max_width]
    return fits[0] if fits else len(tables) - 1


def named_lines(lines: Iterable[tuple[str, str]]) -> table.Table:
    grid = table.Table.grid(padding=(0, 2))
    grid.add_column(min_width=4)
    grid.add_column(overflow="fold")
    for name, text in lines:
        grid.add_row(Text(printable(name)), Text(printable(text)))
    return grid


def escape_markdown(text: str) -> str:
    """Returns `text` so that Markdown and the HTML in it show it and do nothing with it."""
    for character in "\\`*_{}[]<>|":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.splitlines())


def _rounded(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return "" if cell is None else str(cell)

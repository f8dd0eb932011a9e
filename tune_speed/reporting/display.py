"""What results look like: a table in a terminal, text where none is, HTML in a notebook.

Names in results are anybody's. A terminal shows what is printable of them, and HTML escapes them.
"""

import io
from collections.abc import Iterable

from markupsafe import Markup, escape
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tune_speed.core.text import printable_lines


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
    """Returns what a terminal of this width would show, without colours."""
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

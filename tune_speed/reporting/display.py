"""What results look like: a table in a terminal, text where none is, HTML in a notebook.

Names in results are anybody's. A terminal shows what is printable of them, and HTML escapes them.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.text import Text

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


class Displayed(ABC):
    """Something that `print`, rich and a notebook show as people read it."""

    @abstractmethod
    def _parts(self) -> Sequence[RenderableType]:
        """Returns what a terminal shows, one below the other; a text stays as it is."""

    @abstractmethod
    def _repr_html_(self) -> str:
        """Returns what a notebook shows: HTML without scripts, in which all names are escaped."""

    def __rich__(self) -> RenderableType:
        shown = [Text(part) if isinstance(part, str) else part for part in self._parts()]
        spaced = [each for part in shown for each in (Text(), part)]
        return Group(*spaced[1:])

    def __str__(self) -> str:
        # Commands in a text are not folded: they are there to be copied.
        shown = (part if isinstance(part, str) else as_text(part) for part in self._parts())
        return "\n\n".join(shown)


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
    """Returns lines whose columns stay below one another."""
    return Markup("<pre>{}</pre>").format(printable_lines(text))


def html_line(text: str, *, tag: str = "p") -> Markup:
    """Returns a paragraph, or a heading."""
    return Markup("<{}>{}</{}>").format(tag, printable_lines(text), tag)


def html_block(*parts: Markup | str) -> str:
    """Returns the parts as one element; what is no markup is escaped."""
    inner = Markup("").join(escape(part) for part in parts)
    return str(Markup("<div>{}</div>").format(inner))

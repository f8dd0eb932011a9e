"""A console whose texts cannot steer the terminal, wherever they come from."""

from collections.abc import Iterable

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
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)

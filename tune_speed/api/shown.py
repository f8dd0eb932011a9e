"""What the calls return shows itself: as tables and text, as HTML in a notebook, and as JSON."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.text import Text

from tune_speed.core.text import printable_lines
from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.leaderboard.tables import as_renderable, boards_html
from tune_speed.reporting.table import WIDTH, as_text, html_block, html_text
from tune_speed.reporting.trials.text import to_json

# Characters of a line of a table that has no HTML of its own.
WIDE = WIDTH + 40


class Boards(NamedTuple):
    """Leaderboards, as a part of what is shown."""

    boards: Sequence[Board]

    def __rich__(self) -> RenderableType:
        return as_renderable(self.boards)

    def html(self) -> Markup:
        """Returns a table for each board."""
        return boards_html(self.boards)


class Shown(ABC):
    """Base of what calls return: for `print`, rich, notebooks and JSON; HTML escapes names."""

    @abstractmethod
    def parts(self) -> Sequence[RenderableType]:
        """Returns what is shown, one below the other: texts, tables, leaderboards."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Returns what `--json` prints: plain values, infinite times as None."""

    def to_json(self) -> str:
        """Returns `as_dict` as indented JSON."""
        return to_json(self.as_dict())

    def __rich__(self) -> RenderableType:
        parts = [Text(printable_lines(p)) if isinstance(p, str) else p for p in self.parts()]
        return Group(*[each for part in parts for each in (Text(), part)][1:])

    def __str__(self) -> str:
        # Commands in a text are not folded: they are there to be copied.
        parts = (printable_lines(p) if isinstance(p, str) else as_text(p) for p in self.parts())
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        return html_block(*map(_html, self.parts()))


def _html(part: Any) -> Markup:
    if isinstance(part, str):
        return html_text(part)
    # What has no HTML of its own is drawn as text, in which nothing is markup.
    html: Markup = part.html() if hasattr(part, "html") else html_text(as_text(part, width=WIDE))
    return html

"""What two recipes trained in turns came to, for a program or a notebook."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from tune_speed.api.trained import Trained
from tune_speed.core.text import printable, printable_lines
from tune_speed.experiments.head_to_head import Duel, duel_text
from tune_speed.experiments.paired_test import Verdict, common_seeds, judge
from tune_speed.reporting.display import Displayed, html_block, html_text


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Compared(Displayed):
    """Two recipes, trained with the same seeds in turns."""

    a: Trained
    """The recipe."""
    b: Trained
    """The other one."""
    was_stopped: bool
    """Whether Ctrl-C ended it; the run that it met is left out."""

    @property
    def verdict(self) -> Verdict | None:
        """Which is faster, and how sure that is; None without a common seed."""
        ours, theirs = self.a.record, self.b.record
        if ours is None or theirs is None or not common_seeds(ours, theirs):
            return None
        return judge(ours, theirs)

    def __repr__(self) -> str:
        found = self.verdict
        told = "no runs with a common seed" if found is None else found.statement
        first = told.splitlines()[0].split(". ")[0]
        return printable(f"Compared({self.a.name!r}, {self.b.name!r}: {first})")

    def _parts(self) -> Sequence[RenderableType]:
        return (self._text(),)

    def _repr_html_(self) -> str:
        return html_block(html_text(self._text()))

    def _text(self) -> str:
        duel = Duel(self.a.record, self.b.record, was_stopped=self.was_stopped)
        return printable_lines(duel_text(duel, a=self.a.name, b=self.b.name)) or repr(self)

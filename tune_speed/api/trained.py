"""What trainings of one recipe came to, for a program or a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup
from rich.console import RenderableType

from tune_speed.core.comparability import target_of
from tune_speed.core.records import RunResult, TrialRecord
from tune_speed.core.text import printable, printable_lines
from tune_speed.experiments.run_summary import Statistics, describe_runs, headline, summarise
from tune_speed.reporting.display import Displayed, html_block, html_text
from tune_speed.reporting.table import Table

LEFT = ("status", "why")
"""Columns of the table of runs that are flush left."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Trained(Displayed):
    """A recipe, trained with one seed or several."""

    name: str
    """Of the recipe."""
    record: TrialRecord | None
    """The recipe and all runs; None: it was stopped before the end of the first."""
    was_stopped: bool
    """Whether Ctrl-C ended it; the run that it met is left out."""

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """One a seed: status, why it ended, `time_to_target_s`, `final` evaluation."""
        return () if self.record is None else self.record.runs

    @property
    def times_s(self) -> tuple[float | None, ...]:
        """Training clock until the target held [s], run by run; None: a miss."""
        return tuple(run.time_to_target_s for run in self.runs)

    @property
    def has_reached(self) -> bool:
        """Whether a run met the target."""
        return any(time_s is not None for time_s in self.times_s)

    @cached_property
    def statistics(self) -> Statistics | None:
        """What the runs say together; None without one."""
        return None if self.record is None else describe_runs(self.record)

    def __repr__(self) -> str:
        hits = sum(time_s is not None for time_s in self.times_s)
        stopped = ", stopped" if self.was_stopped else ""
        found = self.statistics
        known = found is not None and found.median_s is not None
        median = f", median {found.median_s:.3f} s" if found and known else ""
        told = f"{hits} of {len(self.runs)} runs met the target{median}{stopped}"
        return printable(f"Trained({self.name!r}: {told})")

    def _parts(self) -> Sequence[RenderableType]:
        if not self.runs:
            return (repr(self),)
        return (Table.of_columns(self._columns(), left=LEFT), self._text())

    def _repr_html_(self) -> str:
        return html_block(self.html())

    def html(self) -> Markup:
        """Returns the table of the runs and what they say together as HTML."""
        if not self.runs:
            return html_text(repr(self))
        return Table.of_columns(self._columns(), left=LEFT).html() + html_text(self._text())

    def _columns(self) -> Mapping[str, Sequence[str]]:
        metric = "accuracy" if self.record is None else target_of(self.record.workload).metric
        finals = [run.final.value(metric) if run.final else None for run in self.runs]
        return {
            "seed": [str(run.seed) for run in self.runs],
            "status": [run.status.value for run in self.runs],
            "time to target [s]": [_figure(time_s, 3) for time_s in self.times_s],
            f"final {metric}": [_figure(final, 4) for final in finals],
            "why": [run.stop_reason for run in self.runs],
        }

    def _text(self) -> str:
        assert self.record is not None and self.statistics is not None
        name = self.name if self.name not in headline(self.record) else ""
        return printable_lines(summarise(self.record, self.statistics, name=name))


def _figure(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"

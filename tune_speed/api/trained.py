"""Trainings of one recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.console import RenderableType

from tune_speed.api.progress import Progress
from tune_speed.api.shown import Shown
from tune_speed.core.comparability import target_of
from tune_speed.core.records import RunResult, TrialRecord, ended_as
from tune_speed.core.text import counted, fixed, printable
from tune_speed.experiments.rerun import train_seeds
from tune_speed.experiments.run_summary import (
    Statistics,
    describe_runs,
    headline,
    runs_dict,
    runs_text,
)
from tune_speed.reporting.table import Table
from tune_speed.study.file import RecipeFile


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Trained(Shown):
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
        ended = f"{hits} of {counted(len(self.runs), 'run')} met the target{median}{stopped}"
        return printable(f"Trained({self.name!r}: {ended})")

    def parts(self) -> Sequence[RenderableType]:
        """Returns the table of the runs, and their statistics in words."""
        record = self.record
        if record is None:
            return (repr(self),)
        metric = target_of(record.workload).metric
        finals = [run.final.value(metric) if run.final else None for run in self.runs]
        columns = {
            "seed": [str(run.seed) for run in self.runs],
            "status": [ended_as(run) for run in self.runs],
            "time to target [s]": [fixed(time_s, 3) for time_s in self.times_s],
            f"final {metric}": [fixed(final, 4) for final in finals],
            "why": [str(run.stop_reason) for run in self.runs],
        }
        name = self.name if self.name not in headline(record) else ""
        table = Table.of_columns(columns, left=("status", "why"))
        return (table, runs_text(record, name=name))

    def as_dict(self) -> dict[str, Any]:
        """Returns the record's fields and `statistics`; empty without a finished run."""
        return {} if self.record is None else runs_dict(self.record)


def train_recipe(file: RecipeFile, *, seeds: int, download: bool, progress: Progress) -> Trained:
    """Trains a recipe, once with each seed. Raises: ConfigError, DataError."""
    done = train_seeds(
        file, seeds=seeds, download=download, on_progress=progress.decoded, on_line=progress.line
    )
    found = Trained(name=file.name, record=done.a, was_stopped=done.was_stopped)
    warn_of_failure(found, progress)
    return found


def warn_of_failure(found: Trained, progress: Progress) -> None:
    """Reports the last traceback where all runs failed."""
    runs = found.runs
    # Where one seed works, the table's column `why` is enough for the others.
    if runs and runs[-1].traceback and all(run.status == "failed" for run in runs):
        progress.warn(runs[-1].traceback)

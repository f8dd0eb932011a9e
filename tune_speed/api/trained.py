"""Trainings of one recipe, or of two in turns, and which is faster."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from tune_speed.api.progress import Progress
from tune_speed.api.shown import Shown
from tune_speed.core.comparability import target_of
from tune_speed.core.records import RunResult, TrialRecord, ended_as
from tune_speed.core.text import counted, fixed, printable
from tune_speed.experiments import run_summary
from tune_speed.experiments.rerun import train_seeds
from tune_speed.reporting.table import Table
from tune_speed.study.file import RecipeFile
from tune_speed.training.saved_model import is_left, keep_in


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Trained(Shown):
    """A recipe, trained with one seed or several."""

    name: str
    record: TrialRecord | None
    """The recipe and all runs; None: it was stopped before the end of the first."""
    was_stopped: bool
    """Whether Ctrl-C ended it; the run that it met is left out."""
    saved: Path | None = None
    """File of the network of the run with the best last value of the metric; None: not saved."""

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
    def statistics(self) -> run_summary.Statistics | None:
        """What the runs say together; None without one."""
        return None if self.record is None else run_summary.describe_runs(self.record)

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
        name = self.name if self.name not in run_summary.headline(record) else ""
        table = Table.of_columns(columns, left=("status", "why"))
        return (table, run_summary.runs_text(record, name=name))

    def as_dict(self) -> dict[str, Any]:
        """Returns the record's fields and `statistics`; empty without a finished run."""
        return {} if self.record is None else run_summary.runs_dict(self.record)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Compared(Shown):
    """Two recipes, trained with the same seeds in turns."""

    a: Trained
    """The recipe."""
    b: Trained
    """The other one."""
    was_stopped: bool
    """Whether Ctrl-C ended it; the run that it met is left out."""

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """All runs of both."""
        return self.a.runs + self.b.runs

    @property
    def has_reached(self) -> bool:
        """Whether a run of either met the target."""
        return self.a.has_reached or self.b.has_reached

    @property
    def verdict(self) -> run_summary.Verdict | None:
        """Which is faster, and how sure that is; None without a common seed."""
        a, b = self.a.record, self.b.record
        return run_summary.judge(a, b) if a and b and run_summary.common_seeds(a, b) else None

    def __repr__(self) -> str:
        found = self.verdict
        text = "no runs with a common seed" if found is None else found.statement
        first = text.splitlines()[0].split(". ")[0]
        return printable(f"Compared({self.a.name!r}, {self.b.name!r}: {first})")

    def parts(self) -> Sequence[str]:
        """Returns both summaries and the verdict."""
        texts = [
            run_summary.runs_text(each.record, name=f"{side} = {each.name}")
            for side, each in (("A", self.a), ("B", self.b))
            if each.record is not None
        ]
        if (found := self.verdict) is not None:
            by = f"\n  by {found.method}; in turns A B, B A" if found.faster else ""
            texts.append(f"{found.statement}{by}")
        return ("\n\n".join(texts) or repr(self),)

    def as_dict(self) -> dict[str, Any]:
        """Returns the records of both with their statistics, and `comparison`."""
        verdict = self.verdict and self.verdict.model_dump(mode="json")
        return {"a": self.a.as_dict() or None, "b": self.b.as_dict() or None, "comparison": verdict}


def train_files(
    files: Sequence[RecipeFile],
    names: Sequence[str],
    *,
    seeds: int,
    save: Path | None,
    download: bool,
    progress: Progress,
) -> Trained | Compared:
    """Trains one recipe, or two in turns with the same seeds; `save` gets the best run's network.

    Raises: ConfigError, DataError, StorageError if `save` cannot be written.
    """
    keep = None if save is None else keep_in(save)
    files = [replace(file, keep=keep) for file in files]
    done = train_seeds(
        *files, seeds=seeds, download=download, on_progress=progress.decoded, on_line=progress.line
    )
    saved = save if keep is not None and is_left(keep) else None
    found = [
        Trained(name=name, record=record, was_stopped=done.was_stopped, saved=saved)
        for name, record in zip(names, (done.a, done.b), strict=False)
    ]
    for each in found:
        # Where one seed works, the table's column `why` is enough for the others.
        last = each.runs[-1].traceback if each.runs else None
        if last and all(run.status == "failed" for run in each.runs):
            progress.warn(last)
    if len(found) == 1:
        return found[0]
    return Compared(a=found[0], b=found[1], was_stopped=done.was_stopped)

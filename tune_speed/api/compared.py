"""Two recipes trained in turns, and which is faster."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tune_speed.api.progress import Progress
from tune_speed.api.shown import Shown
from tune_speed.api.trained import Trained, warn_of_failure
from tune_speed.core.records import RunResult
from tune_speed.core.text import printable
from tune_speed.experiments.paired_test import Verdict, duel_dict, duel_text, verdict_of
from tune_speed.experiments.rerun import train_seeds
from tune_speed.study.file import RecipeFile


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
    def verdict(self) -> Verdict | None:
        """Which is faster, and how sure that is; None without a common seed."""
        return verdict_of(self.a.record, self.b.record)

    def __repr__(self) -> str:
        found = self.verdict
        text = "no runs with a common seed" if found is None else found.statement
        first = text.splitlines()[0].split(". ")[0]
        return printable(f"Compared({self.a.name!r}, {self.b.name!r}: {first})")

    def parts(self) -> Sequence[str]:
        """Returns both summaries and the verdict."""
        records, names = (self.a.record, self.b.record), (self.a.name, self.b.name)
        return (duel_text(records, names) or repr(self),)

    def as_dict(self) -> dict[str, Any]:
        """Returns the records of both with their statistics, and `comparison`."""
        return duel_dict(self.a.record, self.b.record)


def train_two(
    files: Sequence[RecipeFile],
    names: Sequence[str],
    *,
    seeds: int,
    download: bool,
    progress: Progress,
) -> Compared:
    """Trains both recipes with the same seeds. Raises: ConfigError, DataError."""
    done = train_seeds(
        *files, seeds=seeds, download=download, on_progress=progress.decoded, on_line=progress.line
    )
    a, b = (
        Trained(name=name, record=record, was_stopped=done.was_stopped)
        for name, record in zip(names, (done.a, done.b), strict=True)
    )
    for each in (a, b):
        warn_of_failure(each, progress)
    return Compared(a=a, b=b, was_stopped=done.was_stopped)

"""An ablation and its result."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from tune_speed.api.progress import Progress
from tune_speed.api.shown import Shown
from tune_speed.core.records import TrialRecord
from tune_speed.core.text import counted, printable
from tune_speed.experiments.ablation import tables
from tune_speed.experiments.ablation.ablate import Ablation, deliver_runs, save_result
from tune_speed.experiments.ablation.plot import plot_ablation
from tune_speed.experiments.ablation.result import AblationResult, ArmResult, EffectResult


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Ablated(Shown):
    """A recipe with and without changes, and what each of them does."""

    ablation: Ablation
    path: Path
    """The figures as JSON."""
    picture: Path | None
    """Where they are drawn; None: no run was done."""

    @property
    def result(self) -> AblationResult:
        """All figures."""
        return self.ablation.result

    @property
    def arms(self) -> tuple[ArmResult, ...]:
        """What was run, the base first."""
        return self.result.arms

    @property
    def effects(self) -> tuple[EffectResult, ...]:
        """What each change does, alone and together."""
        return self.result.effects

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """All runs, including those of a re-tuning, as trials of one study."""
        return self.ablation.records

    @property
    def was_stopped(self) -> bool:
        """Whether Ctrl-C ended it; the same call continues."""
        return self.ablation.was_stopped

    def __repr__(self) -> str:
        runs = f"{counted(self.result.done_runs, 'run')} of {counted(len(self.arms), 'arm')}"
        stopped = ", stopped" if self.was_stopped else ""
        return printable(f"Ablated({self.result.study!r}: {runs}{stopped})")

    def parts(self) -> Sequence[RenderableType]:
        """Returns the tables of arms and of effects, with their notes."""
        return (Group(*tables.as_renderables(self.result)),)

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures."""
        return self.result.model_dump(mode="json")


def save(ablation: Ablation, plot: Path | None, *, progress: Progress) -> Ablated:
    """Writes figures and picture, and delivers the runs to MLflow. Raises: StorageError."""
    saved = save_result(ablation)
    picture = None
    if ablation.result.done_runs:
        picture = plot or saved.with_suffix(".png")
        plot_ablation(ablation.result, picture)
        progress.line(f"wrote {saved} and {picture}")
    # After the figures are saved: MLflow may be away, and its absence is only a warning.
    if line := deliver_runs(ablation):
        progress.warn(line)
    return Ablated(ablation=ablation, path=saved, picture=picture)

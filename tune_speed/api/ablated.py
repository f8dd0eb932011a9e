"""What an ablation found, for a program or a notebook."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType

from tune_speed.core.records import TrialRecord
from tune_speed.core.text import printable
from tune_speed.experiments.ablation import tables
from tune_speed.experiments.ablation.ablate import Ablation, save_result
from tune_speed.experiments.ablation.delivery import deliver
from tune_speed.experiments.ablation.plot import plot_ablation
from tune_speed.experiments.ablation.result import AblationResult, ArmResult, EffectResult
from tune_speed.reporting.display import WIDTH, Displayed, as_text, html_block, html_text


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Ablated(Displayed):
    """A recipe with and without changes, and what each of them does."""

    ablation: Ablation
    """What the ablation returned."""
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
        """All runs, those of a re-tuning included, as trials of one study."""
        return self.ablation.records

    @property
    def was_stopped(self) -> bool:
        """Whether Ctrl-C ended it; the same call goes on."""
        return self.ablation.was_stopped

    def __repr__(self) -> str:
        runs = f"{self.result.done_runs} runs of {len(self.arms)} arms"
        stopped = ", stopped" if self.was_stopped else ""
        return printable(f"Ablated({self.result.study!r}: {runs}{stopped})")

    def _parts(self) -> Sequence[RenderableType]:
        return (Group(*tables.as_renderables(self.result)),)

    def _repr_html_(self) -> str:
        return html_block(html_text(as_text(self.__rich__(), width=WIDTH + 40)))


def keep(
    ablation: Ablation,
    plot: Path | None,
    *,
    on_line: Callable[[str], None],
    on_warning: Callable[[str], None],
) -> Ablated:
    """Writes figures and picture, and delivers the runs to MLflow. Raises: StorageError."""
    saved = save_result(ablation)
    picture = None
    if ablation.result.done_runs:
        picture = plot or saved.with_suffix(".png")
        plot_ablation(ablation.result, picture)
        on_line(f"wrote {saved} and {picture}")
    for line in deliver(ablation.records, study=ablation.result.study):
        on_warning(line)
    return Ablated(ablation=ablation, path=saved, picture=picture)

"""What a search found, for a program or a notebook."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from tune_speed.api.certified import Certified, certify_study
from tune_speed.core.records import TrialRecord
from tune_speed.core.text import printable, printable_lines
from tune_speed.custom.shipping import Loop
from tune_speed.reporting.display import Displayed, html_block, html_text
from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.leaderboard.tables import as_renderable, boards_html
from tune_speed.reporting.trials.recipe_export import recipe_yaml
from tune_speed.reporting.trials.text import next_steps
from tune_speed.study.settings import CertifyConfig
from tune_speed.study.yaml import parse_yaml
from tune_speed.tracking.store.uri import strip_secrets
from tune_speed.tuning.search import SearchResult

if TYPE_CHECKING:
    from tune_speed.api.results import Results


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Study(Displayed):
    """A study as a search left it."""

    name: str
    """Of the study."""
    result: SearchResult
    """What the search returned."""
    address: str | None = None
    """Ray cluster that was searched on; None: a local one."""
    certification: Certified | None = None
    """What came of it, where the study's file wants it certified and a trial met the target."""
    loop: Loop | None = None
    """The training function that was searched; None: recipes were."""

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """All finished trials of the study, those of earlier searches included."""
        return self.result.records

    @property
    def boards(self) -> tuple[Board, ...]:
        """The leaderboards."""
        return self.result.boards

    @property
    def folder(self) -> Path:
        """Where ledger and study file are."""
        return self.result.folder

    @property
    def uri(self) -> str:
        """Address of the MLflow store, without its password."""
        return strip_secrets(self.result.uri)

    @property
    def was_stopped(self) -> bool:
        """Whether Ctrl-C ended the search."""
        return self.result.was_stopped

    @cached_property
    def best(self) -> TrialRecord | None:
        """The trial that reached the target soonest; None: no trial did."""
        ranked = [row for board in self.boards for row in board.rows if row.rank is not None]
        first = min(ranked, key=lambda row: row.expected_s or math.inf, default=None)
        found = {record.trial_id: record for record in self.records}
        return None if first is None else found[first.trial_id]

    @property
    def params(self) -> dict[str, Any] | None:
        """What the best trial's training function was called with; None: there is none."""
        if self.best is None or self.loop is None:
            return None
        return dict(self.best.recipe["params"])

    @property
    def recipe_yaml(self) -> str | None:
        """A file's text for `train` that repeats the best trial.

        None: there is none, or it is a training function's, whose `params` say it.
        """
        if self.best is None or self.loop is not None:
            return None
        return recipe_yaml(self.best, run_id=None)

    @property
    def recipe(self) -> dict[str, Any] | None:
        """The same as a dict, with study, workload, recipe and run; `train` takes it too."""
        text = self.recipe_yaml
        return None if text is None else dict(parse_yaml(text).tree)

    def results(self) -> "Results":
        """Returns the store that the trials are in: `study.results().trials(study.name)`."""
        from tune_speed.api.results import Results

        return Results(self.result.uri)

    def certify(
        self,
        *,
        top: int = 5,
        seeds: int = 5,
        final: int = 2,
        final_seeds: int = 20,
        device: str | None = None,
        again: bool = False,
        progress: bool | None = None,
    ) -> Certified:
        """Runs the fastest again with fresh seeds, as `tune_speed.certify` does.

        Raises: ConfigError, DataError, ServiceError, StorageError.
        """
        return certify_study(
            self.name,
            CertifyConfig(top=top, seeds=seeds, final=final, final_seeds=final_seeds),
            folder=self.folder,
            device=device,
            address=self.address,
            again=again,
            progress=progress,
            loop=self.loop,
        )

    def __repr__(self) -> str:
        best = self.best
        time = "none met the target" if best is None else f"best {best.time_to_target_s:.3f} s"
        stopped = ", stopped" if self.was_stopped else ""
        return printable(f"Study({self.name!r}: {len(self.records)} trials, {time}{stopped})")

    def _parts(self) -> Sequence[RenderableType]:
        more = self.certification.parts() if self.certification else ()
        return (as_renderable(self.boards), self._last_lines(), *more)

    def _repr_html_(self) -> str:
        more = [self.certification.html()] if self.certification else []
        return html_block(boards_html(self.boards), html_text(self._last_lines()), *more)

    def _certify_call(self) -> str:
        """Returns what certifies a training function's fastest; empty where nothing is left to."""
        if self.loop is None or self.certification is not None:
            return ""
        return f"tune_speed.certify({self.name!r}, train={self.loop.name})"

    def _last_lines(self) -> str:
        lines = next_steps(
            self.records,
            self.boards,
            study=self.name,
            folder=str(self.folder),
            uri=self.uri,
            num_undelivered=len(self.result.undelivered),
            certify=self._certify_call(),
        )
        return printable_lines(lines)

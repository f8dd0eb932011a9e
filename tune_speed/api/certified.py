"""A certification and its result."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from tune_speed.api.shown import Boards, Shown
from tune_speed.core.records import TrialRecord
from tune_speed.core.text import counted, printable
from tune_speed.experiments.certification.certify import CertifyResult
from tune_speed.experiments.certification.report import as_dict, certification_text, luck
from tune_speed.reporting.leaderboard.ranking import Board, make_boards


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Certified(Shown):
    """Finalists of a study, run again with fresh seeds alone on the device."""

    study: str
    result: CertifyResult

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """Certified records, best first; empty if it was stopped."""
        return self.result.records

    @property
    def best(self) -> TrialRecord | None:
        """The best certified record; None: none met the target undisturbed, or it was stopped."""
        certified = (record for record in self.records if record.is_certified)
        hits = (r for r in certified if any(run.time_to_target_s for run in r.runs))
        return next(hits, None)

    @property
    def boards(self) -> tuple[Board, ...]:
        """The certified leaderboard."""
        pairs = ((None, record) for record in self.records)
        return tuple(make_boards(pairs, with_misses=True))

    @property
    def luck(self) -> list[dict[str, Any]]:
        """Estimate and certified time of each finalist, the best estimate first."""
        return luck(self.result)

    @property
    def folder(self) -> Path:
        """Where the study's files and the certificates are."""
        return self.result.folder

    @property
    def was_stopped(self) -> bool:
        """Whether Ctrl-C ended it; the same call continues."""
        return self.result.was_stopped

    def __repr__(self) -> str:
        if self.was_stopped:
            return printable(f"Certified({self.study!r}: stopped)")
        hits = sum(run.time_to_target_s is not None for r in self.records for run in r.runs)
        runs = sum(len(record.runs) for record in self.records)
        of = f"{counted(len(self.records), 'recipe')}, {hits} of {counted(runs, 'run')}"
        return printable(f"Certified({self.study!r}: {of} met the target)")

    def parts(self) -> Sequence[RenderableType]:
        """Returns leaderboard and findings."""
        if self.was_stopped:
            return (f"{self.study}: stopped; the same call continues",)
        return (Boards(self.boards), certification_text(self.result))

    def as_dict(self) -> dict[str, Any]:
        """Returns `certification`: leaderboard, luck, suggestions and certificates."""
        return {"certification": as_dict(self.result)}

"""A certification and its result, in words and as JSON."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from tune_speed.api.shown import Boards, Shown
from tune_speed.core.records import TrialRecord, in_words
from tune_speed.core.stats import RunStatistics, sample_of
from tune_speed.core.text import counted, printable
from tune_speed.experiments.certification.certify import CertifyResult
from tune_speed.reporting.leaderboard.ranking import Board, make_boards
from tune_speed.reporting.leaderboard.text import why_not_certified


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Certified(Shown):
    """Finalists of a study, run again with fresh seeds alone on the device."""

    study: str
    result: CertifyResult
    saved: Path | None = None
    """File of the best certified recipe's network, of its run with the best metric; None: none."""

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
        """Returns `certification`: leaderboard, luck and certificates."""
        return {"certification": as_dict(self.result)}


def certification_text(result: CertifyResult) -> str:
    """Returns the findings in words, a line each."""
    trained_on = [each.record.workload.get("certify_on") for each in result.finalists]
    more = f", trained on {trained_on[0]}" if any(trained_on) else ""
    head = f"the winner's luck, estimate → certified (median of the hits{more}):"
    studies = {each.record.study for each in result.finalists}
    why_not = why_not_certified(each for each in result.records if each.study in studies)
    lines = [*filter(None, [why_not]), head]
    for row in luck(result):
        estimate, ratio = f"{row['estimate_s']:.2f} s", row["ratio"]
        time = f"{row['certified_s']:.2f} s ({ratio:.2f}×)" if ratio else "no time"
        again = f"{row['hits']} of {row['n']} met the target again"
        lines.append(f"  {row['name']}: {estimate} → {time}, {again}")
    lines += [each.dropped.reason for each in result.ranks if each.dropped is not None]
    lines.append(f"certificates: {result.folder / 'certified'}; every run is in MLflow")
    if result.undelivered:
        lines.append(
            f"warning: MLflow has not taken {len(result.undelivered)} of them"
            f" ({result.undelivered[0].reason}); the same command delivers them."
        )
    return "\n".join(lines)


def as_dict(result: CertifyResult) -> dict[str, Any]:
    """Returns leaderboard, luck and certificates as plain values."""
    boards = make_boards(((None, record) for record in result.records), with_misses=True)
    return {
        "boards": [board.model_dump(mode="json") for board in boards],
        "luck": luck(result),
        "dropped": [p.dropped._asdict() for p in result.ranks if p.dropped is not None],
        "folder": str(result.folder),
        "certificates": [in_words(record.certificate) for record in result.records],
    }


def luck(result: CertifyResult) -> list[dict[str, Any]]:
    """`ratio` is certified / estimate, of hits: above 1 the finalist was lucky in the search."""
    runs = {placed.name: placed.runs for placed in result.ranks}
    holds = {f"{each.study}/{each.trial_id}" for each in result.records if each.is_certified}
    rows = []
    for each in result.finalists:
        found = RunStatistics(tuple(map(sample_of, runs.get(each.name, ()))))
        is_known = found.hits > 0 and each.name in holds
        certified_s = statistics.median(found.hits_s) if is_known else None
        estimate_s = each.record.time_to_target_s
        row: dict[str, Any] = {
            "name": each.name,
            "estimate_s": estimate_s,
            "certified_s": certified_s,
            "ratio": certified_s / estimate_s if certified_s and estimate_s else None,
            "hits": found.hits,
            "n": found.n,
        }
        rows.append(row)
    return rows

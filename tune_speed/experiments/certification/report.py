"""What a certification found, in words and as JSON."""

import statistics
from typing import Any

from tune_speed.core.comparability import final_goodness, final_metric, goodness, target_of
from tune_speed.core.records import TrialRecord
from tune_speed.core.targets import Target
from tune_speed.experiments.certification.assemble import Finalist
from tune_speed.experiments.certification.certify import CertifyResult
from tune_speed.experiments.certification.schedule import FinalRank
from tune_speed.experiments.margin import estimate_slope, suggestion
from tune_speed.reporting.leaderboard.ranking import make_boards

NEAR = 0.05
"""Trials that end this far below the target or less tell what length is worth: what fails by more
fails for a reason that no length mends."""


def certification_text(result: CertifyResult) -> str:
    """Returns estimate beside certified time of each finalist, who was dropped, and what to try."""
    lines = ["the winner's luck, estimate → certified (median of the hits):", *_luck_lines(result)]
    lines += [each.dropped.reason for each in result.ranks if each.dropped is not None]
    lines += _suggestions(result)
    lines.append(f"certificates: {result.folder / 'certified'}; every run is in MLflow")
    if result.undelivered:
        lines.append(
            f"warning: MLflow has not taken {len(result.undelivered)} of them"
            f" ({result.undelivered[0].reason}); the same command delivers them."
        )
    return "\n".join(lines)


def as_dict(result: CertifyResult) -> dict[str, Any]:
    """Returns the certified leaderboard, the luck of each finalist and all certificates."""
    boards = make_boards(((None, record) for record in result.records), with_misses=True)
    return {
        "boards": [board.model_dump(mode="json") for board in boards],
        "luck": luck(result),
        "dropped": [p.dropped._asdict() for p in result.ranks if p.dropped is not None],
        "suggestions": _suggestions(result),
        "folder": str(result.folder),
        "certificates": [record.certificate for record in result.records],
    }


def luck(result: CertifyResult) -> list[dict[str, Any]]:
    """Returns estimate and certified time of each finalist, the best estimate first.

    `ratio` is certified / estimate: above 1 the finalist was lucky in the search. Only hits are
    compared here; what misses cost is in the expected time.
    """
    ranks = {placed.name: placed for placed in result.ranks}
    return [_luck_of(each, ranks.get(each.name)) for each in result.finalists]


def _luck_of(finalist: Finalist, placed: FinalRank | None) -> dict[str, Any]:
    runs = placed.runs if placed is not None else ()
    hits = [run.time_to_target_s for run in runs if run.time_to_target_s is not None]
    estimate_s = finalist.record.time_to_target_s
    certified_s = statistics.median(hits) if hits else None
    ratio = certified_s / estimate_s if certified_s and estimate_s else None
    return {
        "name": finalist.name,
        "estimate_s": estimate_s,
        "certified_s": certified_s,
        "ratio": ratio,
        "hits": len(hits),
        "n": len(runs),
    }


def _luck_lines(result: CertifyResult) -> list[str]:
    return [
        f"  {row['name']}: {row['estimate_s']:.2f} s → "
        + (f"{row['certified_s']:.2f} s ({row['ratio']:.2f}×)" if row["ratio"] else "no hit")
        + f", {row['hits']} of {row['n']} met the target again"
        for row in luck(result)
    ]


def _suggestions(result: CertifyResult) -> list[str]:
    """Returns a line for each finalist that a somewhat longer run would serve better."""
    lines = (_suggestion(record, result) for record in result.records)
    return [line for line in lines if line is not None]


def _suggestion(record: TrialRecord, result: CertifyResult) -> str | None:
    target = target_of(record.workload)
    points = [point for point in map(_length_and_goodness, result.estimates) if point]
    enough = goodness(target.value, target)
    slope = estimate_slope([p for p in points if p[1] >= enough - _near(target)])
    finals = [run.final.value(target.metric) for run in record.runs if run.final is not None]
    metrics = [metric for metric in finals if metric is not None]
    if slope is None or record.workload.get("mode") != "fixed_length" or not metrics:
        return None
    run_s = statistics.median(run.clocks.train_s for run in record.runs)
    line = suggestion(metrics, target=target, run_s=run_s, slope=slope.per_ln)
    return None if line is None else f"{record.study}/{record.trial_id}: {line}"


def _near(target: Target) -> float:
    """Returns how far below the target the metric may be: shares have a fixed distance."""
    return NEAR if target.is_share else NEAR * abs(target.value)


def _length_and_goodness(record: TrialRecord) -> tuple[float, float] | None:
    """Returns length [epochs] and goodness of an estimate that went to its end.

    None too where it does not say how long it was: of a training function nobody need know.
    """
    final = record.runs[-1].final
    if final is None or not final.epoch or record.status.value not in ("reached", "missed"):
        return None
    return None if final_metric(record) is None else (final.epoch, final_goodness(record))

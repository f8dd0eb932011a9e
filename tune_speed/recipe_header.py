"""The comment at the head of an exported recipe: where it comes from, how far to believe it."""

from tune_speed.board_row import Row, make_row
from tune_speed.records import TrialRecord
from tune_speed.report import interval_text
from tune_speed.standing import Totals, target_of


def recipe_header(
    record: TrialRecord, *, run_id: str | None, search: Totals | None, rerun: str | None
) -> list[str]:
    """Returns lines of plain text; names in them may still hold line breaks.

    Args:
        record: with its runs.
        run_id: its MLflow run.
        search: what the trials of the search that found it come to; None: not known.
        rerun: the command that trains the file.
    """
    row = make_row(record, run_id=run_id, search=search)
    environment = record.environment
    return [
        f"{record.study}/{record.trial_id}, MLflow run {run_id or 'none'}",
        _result(record, row),
        f"finished {record.finished_at}, tune_speed {environment.get('tune_speed')}",
        f"torch {environment.get('torch')}, commit {environment.get('commit')}",
        _workload(record),
        *_cost(row),
        *([f"train it: {rerun}"] if rerun else []),
    ]


def _result(record: TrialRecord, row: Row) -> str:
    """Returns what the runs came to, and how sure that is."""
    if row.n == 1:
        time_s = row.time_to_target_s
        time = "no time" if time_s is None else f"{time_s:.3f} s"
        return (
            f"{record.kind}: {record.status.value}, {time} to target on {record.device}, one run:"
            f" how it spreads over seeds is not known; clock: {row.timing}"
        )
    expected = interval_text(row.expected_s, row.expected_low_s, row.expected_high_s)
    median = interval_text(row.time_to_target_s, row.median_low_s, row.median_high_s)
    return (
        f"{record.kind}: {row.hits} of {row.n} runs met the target (95 % interval of the rate:"
        f" {row.hit_rate_low:.2f}–{row.hit_rate_high:.2f}); expected time with restarts"
        f" {expected} s, median {median} s, on {record.device}; clock: {row.timing}"
    )


def _workload(record: TrialRecord) -> str:
    goal = f"{target_of(record.workload).words}, {record.workload.get('mode')}"
    return (
        f"target: {goal}, on the {record.evaluated_on} part of {record.workload_name}; workload"
        f" {record.workload_hash}, search space {record.space_hash}, protocol"
        f" {record.protocol_version}"
    )


def _cost(row: Row) -> list[str]:
    if row.study_trials is None:
        return []
    held = "" if row.study_device_s is None else f", {row.study_device_s:.0f} device-seconds"
    return [f"found in a search of {row.study_trials} trials{held}"]

"""Reports of a trial's process to the driver: of a curve, only what the driver has not seen.

| field    | meaning                                                                  |
|----------|--------------------------------------------------------------------------|
| `record` | the record so far as JSON, without the evaluations that were sent before |
| `before` | how many these are                                                       |
| `end`    | `finished`: this is the trial's record; `hung`: likewise, and the        |
|          | process is about to end; `interrupted`, `stopped`: the trial has ended   |
| `done`   | whether the process can take another trial                               |

Without `record` and `end` it is a heartbeat. Ray delivers reports in order, each once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tune_speed.core.records import Evaluation, TrialRecord

How = Literal["finished", "hung", "interrupted", "stopped"]


def standing(record: TrialRecord, *, before: int) -> dict[str, Any]:
    """Returns the report of a running trial of which `before` evaluations were sent."""
    short = _with_curve(record, record.runs[-1].evaluations[before:])
    return {"record": short.model_dump_json(), "before": before}


def ended(how: How, record: TrialRecord | None = None) -> dict[str, Any]:
    report: dict[str, Any] = {"end": how, "done": how != "hung"}
    if record is not None:
        report |= {"record": record.model_dump_json(), "before": 0}
    return report


def received(report: Mapping[str, Any], newest: TrialRecord | None = None) -> TrialRecord:
    """Returns the whole record of a report; `newest` is that of the report before it."""
    record, before = TrialRecord.model_validate_json(report["record"]), report["before"]
    known = () if newest is None else newest.runs[-1].evaluations
    assert before <= len(known), "a report was lost"
    return _with_curve(record, (*known[:before], *record.runs[-1].evaluations))


def _with_curve(record: TrialRecord, evaluations: Sequence[Evaluation]) -> TrialRecord:
    run = record.runs[-1].model_copy(update={"evaluations": tuple(evaluations)})
    return record.model_copy(update={"runs": (*record.runs[:-1], run)})

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

from collections.abc import Mapping
from typing import Any, Literal

from tune_speed.core.records import Evaluation, TrialRecord

How = Literal["finished", "hung", "interrupted", "stopped"]


class Sender:
    """Writes the reports of one trial."""

    def __init__(self) -> None:
        self._num_sent = 0

    def standing(self, record: TrialRecord) -> dict[str, Any]:
        run, before = record.runs[-1], self._num_sent
        self._num_sent = len(run.evaluations)
        new = run.model_copy(update={"evaluations": run.evaluations[before:]})
        runs = (*record.runs[:-1], new)
        short = record.model_copy(update={"runs": runs})
        return {"record": short.model_dump_json(), "before": before}

    @staticmethod
    def ended(how: How, record: TrialRecord | None = None) -> dict[str, Any]:
        """Returns the last report of a trial; its record is whole."""
        report: dict[str, Any] = {"end": how, "done": how != "hung"}
        if record is not None:
            report |= {"record": record.model_dump_json(), "before": 0}
        return report


class Receiver:
    """Reads the reports of one trial."""

    def __init__(self) -> None:
        self._evaluations: tuple[Evaluation, ...] = ()

    def record(self, report: Mapping[str, Any]) -> TrialRecord:
        """Returns the whole record so far, or at the trial's end."""
        record = TrialRecord.model_validate_json(report["record"])
        run, before = record.runs[-1], report["before"]
        assert before <= len(self._evaluations), "a report was lost"
        self._evaluations = self._evaluations[:before] + run.evaluations
        whole = run.model_copy(update={"evaluations": self._evaluations})
        return record.model_copy(update={"runs": (*record.runs[:-1], whole)})

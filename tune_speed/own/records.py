"""Which task a record is of: a workload with data of ours, or a training function's."""

from tune_speed.own.spec import OwnTask
from tune_speed.records import TrialRecord
from tune_speed.workload import Workload


def is_own(record: TrialRecord) -> bool:
    """Returns whether a training function made the record."""
    return "function_hash" in record.workload


def task_of(record: TrialRecord) -> Workload | OwnTask:
    """Returns what the record's trial was to reach. Raises: pydantic's ValidationError."""
    kind: type[Workload] | type[OwnTask] = OwnTask if is_own(record) else Workload
    return kind.model_validate(record.workload)

"""Which task a record is of: a workload with data of ours, or a training function's."""

from tune_speed.core.records import TrialRecord
from tune_speed.custom.spec import OwnTask
from tune_speed.training.workload import Workload


def task_of(record: TrialRecord) -> Workload | OwnTask:
    """Returns what the record's trial was to reach. Raises: pydantic's ValidationError."""
    kind: type[Workload] | type[OwnTask] = OwnTask if record.is_own_loop else Workload
    return kind.model_validate(record.workload)

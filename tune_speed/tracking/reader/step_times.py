"""Isolated step times that trials on record measured, for those that are to come."""

from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from tune_speed.core.records import StepTime
from tune_speed.tracking import schema
from tune_speed.tracking.reader.mlflow_filter import experiments_with, runs_with
from tune_speed.tracking.store.deadline import within
from tune_speed.tracking.store.errors import errors_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Longest wait for them; a database that is frozen would never answer.
READ_S = 60.0
# The latest measurements that are read: what is older was mostly made with other versions.
MOST_RUNS = 1000

_STEP_TIMES = TypeAdapter(tuple[StepTime, ...])


def find_step_times(client: "MlflowClient", *, uri: str) -> tuple[StepTime, ...]:
    """Returns the windows of step times on record, of all studies, the oldest first.

    Raises: ServiceError if the store does not answer.
    """

    def find() -> tuple[StepTime, ...]:
        ids = [e.experiment_id for e in experiments_with(client, {schema.KIND: schema.STUDY_KIND})]
        measured = f"tags.`{schema.STEP_TIMES}` != ''"
        runs = runs_with(client, ids, {}, also=measured, order_by=("attributes.start_time DESC",))
        return tuple(each for run in reversed([*islice(runs, MOST_RUNS)]) for each in _read(run))

    # Of all studies: keys hold device and versions, so that none is used where it does not hold.
    with errors_of(uri):
        return within(READ_S, find)


def _read(run: Any) -> tuple[StepTime, ...]:
    try:
        return _STEP_TIMES.validate_json(run.data.tags.get(schema.STEP_TIMES, "[]"))
    except ValidationError:
        # Of another version; it is measured again.
        return ()

"""What a trial of a training function of one's own is before it runs."""

from typing import Annotated, Any

from pydantic import Field

from tune_speed.core.config import Config, canonical_hash
from tune_speed.core.records import TrialRecord
from tune_speed.core.targets import Task
from tune_speed.training.trial import SpecBase, TrialSpec
from tune_speed.training.workload import Workload


class OwnTask(Task):
    """What a training function is to reach. The data are its own affair."""

    function: Annotated[str, Field(min_length=1)]
    """Its name."""
    function_hash: str
    """Hash over its source; of others there are other results."""

    @property
    def name(self) -> str:
        """Function, metric and value: `my_train-accuracy-0.97`."""
        return f"{self.function}-{self.target.metric}-{self.target.value:g}"

    def identity(self) -> str:
        """Returns a hash over all that defines the task."""
        return canonical_hash(self.model_dump(mode="json"))


class OwnRecipe(Config):
    """What a training function is called with."""

    params: dict[str, Any]
    """Fixed and searched values, as the search space's tree has them."""


class OwnSpec(SpecBase):
    """All that is needed to run a trial of a training function, but for the function."""

    recipe: OwnRecipe
    workload: OwnTask


def task_of(record: TrialRecord) -> Workload | OwnTask:
    """Returns what the record's trial was to reach. Raises: pydantic's ValidationError."""
    kind: type[Workload] | type[OwnTask] = OwnTask if record.is_own_loop else Workload
    return kind.model_validate(record.workload)


def spec_of(task: Task, recipe: Config, **fields: Any) -> SpecBase:
    """Returns the specification of a trial, of a recipe or of a training function by its task."""
    kind: type[SpecBase] = OwnSpec if isinstance(task, OwnTask) else TrialSpec
    return kind(workload=task, recipe=recipe, **fields)

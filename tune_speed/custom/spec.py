"""What a trial of a training function of one's own is before it runs."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

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
    dataset_name: ClassVar[None] = None
    split_seed: ClassVar[None] = None
    certify_on: ClassVar[None] = None

    @property
    def label(self) -> str:
        """Function, metric and value: `my_train-accuracy-0.97`."""
        return f"{self.function}-{self.target.label}"

    def identity(self) -> str:
        """Returns a hash over all that defines the task."""
        return canonical_hash(self.model_dump(mode="json"))

    def located(self) -> Self:
        """Returns the same task, which names no files."""
        return self

    def num_train(self) -> None:
        """Returns None: the size of the training part is not known."""

    def grid_samples(self, *, num_train: int | None) -> None:
        """Returns None: the function evaluates when it likes."""


class OwnRecipe(Config):
    """What a training function is called with."""

    params: dict[str, Any]
    """Fixed and searched values, as the search space's tree has them."""


class OwnSpec(SpecBase):
    """All that is needed to run a trial of a training function, but for the function."""

    recipe: OwnRecipe
    workload: OwnTask

    @staticmethod
    def recipe_of(tree: Mapping[str, Any]) -> OwnRecipe:
        """Returns what the function is called with in one point of the search space."""
        return OwnRecipe(params=dict(tree))


def task_of(record: TrialRecord) -> Workload | OwnTask:
    """Returns what the record's trial was to reach. Raises: pydantic's ValidationError."""
    kind: type[Workload] | type[OwnTask] = OwnTask if record.is_own_loop else Workload
    return kind.model_validate(record.workload)


def spec_type(task: Task) -> type[SpecBase]:
    """Returns the class of the trials that are to reach `task`."""
    return OwnSpec if isinstance(task, OwnTask) else TrialSpec


def read_spec(text: str) -> SpecBase:
    """Returns the trial of its JSON. Raises: pydantic's ValidationError."""
    kind = OwnSpec if "function_hash" in json.loads(text)["workload"] else TrialSpec
    return kind.model_validate_json(text)

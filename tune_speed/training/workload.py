"""What must be reached: data, split, target, crossing mode, evaluation grid, time limit.

No search may touch a workload. Two runs may be compared only within one workload.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from tune_speed.components.metrics import target_metrics
from tune_speed.core.config import Component, canonical_hash, did_you_mean, left_out
from tune_speed.core.records import Evaluation
from tune_speed.core.targets import Target, Task
from tune_speed.data import DATASETS
from tune_speed.data.base import DatasetConfig, reading
from tune_speed.data.datasets.builtin import Digits
from tune_speed.data.split import SplitConfig, SplitSizes, TrainedOn, split_sizes


class Workload(Task):
    """A task with a target."""

    function_hash: ClassVar[None] = None
    """Of a training function's source, in tasks of training functions."""
    dataset: Annotated[DatasetConfig, Component(DATASETS, tag="name")]
    """Data set by name, with its fields."""
    split: SplitConfig = SplitConfig()
    """How the data is divided; the search sees training and validation only."""
    eval_every_samples: Annotated[int, Field(gt=0)] | None = None
    """Evaluation grid [training samples], the same for every recipe; null: the size of the training
    part. A run is evaluated at the first step that reaches a point of the grid, and at its end."""
    eval_batch_size: Annotated[int, Field(gt=0)] = 1000
    """Samples of one evaluation batch."""
    certify_on: TrainedOn = left_out("train")
    """What a certification trains on; it is judged on the test part, a search as ever."""
    name: str | None = left_out(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,99}$")
    """What boards call it, each a board of its own; null: data set, metric and value. It is no part
    of the task's identity."""

    @field_validator("target")
    @classmethod
    def _metric_is_measured(cls, target: Target) -> Target:
        if target.metric not in (known := target_metrics()):
            near = did_you_mean(target.metric, known)
            raise ValueError(f"metric must be one of {', '.join(known)}{near}")
        return target

    @model_validator(mode="after")
    def _classes_keep_their_shares(self) -> Self:
        if self.split.long_tail is not None and self.certify_on != "train":
            raise ValueError("certify_on must be train with split.long_tail, as only train has it")
        return self

    @property
    def label(self) -> str:
        """Its name, the built-in's, or data set, metric and value: `cifar10-accuracy-0.91`."""
        if self.name is not None:
            return self.name
        for name, workload in WORKLOADS.items():
            if workload == self:
                return name
        return f"{self.dataset_name}-{self.target.label}"

    @property
    def dataset_name(self) -> str:
        return next(name for name, kind in DATASETS.items() if type(self.dataset) is kind)

    @property
    def split_seed(self) -> int:
        return self.split.seed

    def num_train(self) -> int | None:
        """Returns the samples of the training part, without decoding. Raises: DataError."""
        return self.sizes().train

    def grid_samples(self, *, num_train: int | None) -> int | None:
        """Returns the grid as `grid` does; None where the size of the part is not known."""
        return None if num_train is None else self.grid(num_train=num_train)

    def grid(self, *, num_train: int) -> int:
        return self.eval_every_samples or num_train

    def time_to_target(
        self, evaluations: Sequence[Evaluation], *, num_train: int, at_end: bool
    ) -> float | None:
        """Returns the training clock [s] at which the target held, or None if it does not (yet).

        `fixed_length`: at the last evaluation, and only if the run is `at_end`; passes on the way
        count for nothing. `anytime`: at the first of two consecutive evaluations of the grid that
        hold the target. A single pass at the very end is not confirmed and does not count; nor does
        an evaluation off the grid, made because the run ended, confirm the one before it.

        Evaluations are in their order, that of the untrained model included; `num_train`, the size
        of the training part, is the grid by default.
        """
        on_grid = self._on_grid(evaluations, grid=self.grid(num_train=num_train))
        return self.crossing(on_grid, at_end=at_end)

    def _on_grid(self, evaluations: Sequence[Evaluation], *, grid: int) -> Sequence[Evaluation]:
        if self.mode == "fixed_length":
            return evaluations
        first_of: dict[int, Evaluation] = {}
        for evaluation in evaluations:
            first_of.setdefault(evaluation.samples // grid, evaluation)
        return list(first_of.values())

    def located(self) -> "Workload":
        return self.model_copy(update={"dataset": self.dataset.located()})

    def sizes(self) -> SplitSizes:
        """Returns the number of samples of each part, without decoding. Raises: DataError."""
        with reading(self.dataset):
            counts = self.dataset.counts()
        return split_sizes(counts, self.split)

    def task_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = self.model_dump(mode="json", exclude={"name"})
        for location in self.dataset.location_fields:
            fields["dataset"].pop(location, None)
        return fields

    def identity(self, *, data_hash: str) -> str:
        fields = self.task_fields()
        # Hashes of workloads on record were made before there was another mode.
        if self.target.mode == "max":
            del fields["target"]["mode"]
        return canonical_hash({**fields, "data": data_hash})


WORKLOADS: dict[str, Workload] = {
    # 0.97 is what a good recipe holds on the 288 validation images in seconds on one core.
    "digits": Workload(
        dataset=Digits(),
        target=Target(value=0.97),
        max_train_s=60.0,
        split=SplitConfig(validation_frac=0.2),
    ),
}

"""What must be reached: data, split, target, crossing mode, evaluation grid, time limit.

No search may touch a workload. Two runs may be compared only within one workload.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field

from tune_speed.config import Component, Config, canonical_hash
from tune_speed.data import DATASETS
from tune_speed.data.base import DatasetConfig, reading
from tune_speed.data.digits import Digits
from tune_speed.data.split import SplitConfig, SplitSizes, split_sizes
from tune_speed.records import Evaluation


class Target(Config):
    """What counts as done."""

    metric: Literal["accuracy", "macro_f1"] = "accuracy"
    """Metric on the split that is evaluated."""
    value: Annotated[float, Field(gt=0, le=1)]
    """Least value of the metric that counts as reached, in (0, 1]."""


class Workload(Config):
    """A task with a target."""

    dataset: Annotated[DatasetConfig, Component(DATASETS, tag="name")]
    """Data set by name, with its fields."""
    target: Target
    """What counts as done."""
    mode: Literal["fixed_length", "anytime"] = "fixed_length"
    """`fixed_length`: the length is the recipe's, the target must hold at the end.
    `anytime`: the target is met at the first of two consecutive evaluations that hold it."""
    max_train_s: Annotated[float, Field(gt=0)] = 600.0
    """Limit of one run on the training clock [s]; a run is stopped at the first step that ends past
    it, and has not met the target, whatever it reached."""
    split: SplitConfig = SplitConfig()
    """How the data is divided; the search sees training and validation only."""
    eval_every_samples: Annotated[int, Field(gt=0)] | None = None
    """Evaluation grid [training samples], the same for every recipe; null: the size of the training
    part. A run is evaluated at the first step that reaches a point of the grid, and at its end."""
    eval_batch_size: Annotated[int, Field(gt=0)] = 1000
    """Samples of one evaluation batch."""

    @property
    def name(self) -> str:
        """The built-in's name, or data set, metric and value: `cifar10-accuracy-0.91`."""
        for name, workload in WORKLOADS.items():
            if workload == self:
                return name
        return f"{self.dataset_name}-{self.target.metric}-{self.target.value:g}"

    @property
    def dataset_name(self) -> str:
        """The data set's entry in the table."""
        return next(name for name, kind in DATASETS.items() if type(self.dataset) is kind)

    def metric_of(self, evaluation: Evaluation) -> float:
        """Returns the target metric's value in `evaluation`."""
        scores = {"accuracy": evaluation.accuracy, "macro_f1": evaluation.macro_f1}
        return scores[self.target.metric]

    def grid(self, *, num_train: int) -> int:
        """Returns the training samples between two points of the evaluation grid."""
        return self.eval_every_samples or num_train

    def time_to_target(
        self, evaluations: Sequence[Evaluation], *, num_train: int, at_end: bool
    ) -> float | None:
        """Returns the training clock [s] at which the target held, or None if it does not (yet).

        `fixed_length`: at the last evaluation, and only if the run is `at_end`; passes on the way
        count for nothing. `anytime`: at the first of two consecutive evaluations of the grid that
        hold the target. A single pass at the very end is not confirmed and does not count; nor does
        an evaluation off the grid, made because the run ended, confirm the one before it.

        Args:
            evaluations: in their order, that of the untrained model included.
            num_train: size of the training part, which is the grid by default.
            at_end: whether the run has gone to its end.
        """
        if self.mode == "fixed_length":
            last = evaluations[-1] if at_end and evaluations else None
            return last.train_s if last is not None and self._holds(last) else None
        on_grid = self._on_grid(evaluations, self.grid(num_train=num_train))
        pairs = pairwise(on_grid)
        return next((e.train_s for e, then in pairs if self._holds(e) and self._holds(then)), None)

    def _holds(self, evaluation: Evaluation) -> bool:
        return self.metric_of(evaluation) >= self.target.value

    @staticmethod
    def _on_grid(evaluations: Sequence[Evaluation], grid: int) -> list[Evaluation]:
        """Returns the first evaluation at or after each point of the grid."""
        points = [e.samples // grid for e in evaluations]
        before = [-1, *points]
        return [
            e for e, point, last in zip(evaluations, points, before, strict=False) if point > last
        ]

    def located(self) -> "Workload":
        """Returns the same workload with absolute paths: trials run in folders of their own."""
        return self.model_copy(update={"dataset": self.dataset.located()})

    def sizes(self) -> SplitSizes:
        """Returns the number of samples of each part, without decoding. Raises: DataError."""
        with reading(self.dataset):
            num_train, num_test = self.dataset.num_train(), self.dataset.num_test()
        return split_sizes(num_train, num_test, self.split)

    def identity(self, *, data_hash: str) -> str:
        """Returns a hash over all that defines the task: its fields, less where the data lies."""
        fields: dict[str, Any] = self.model_dump(mode="json")
        for location in self.dataset.location_fields:
            fields["dataset"].pop(location, None)
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

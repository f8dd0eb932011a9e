"""A first training on another data set."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field

from tune_speed.components.speedups.base import Slot, SpeedupConfig, Start
from tune_speed.core.config import Component
from tune_speed.data import DATASETS
from tune_speed.data.base import DatasetConfig

if TYPE_CHECKING:
    from torch import nn


class PretrainOther(SpeedupConfig):
    """Pretraining on another data set; the final layer starts fresh for the classes at hand.

    It has an optimizer of its own, with the recipe's rate for steps of `batch_size` images (Goyal
    et al. 2017, 2.1) held constant after a warm-up over a tenth of the steps, and a final layer
    for the other set's classes, which is thrown away; all other weights and batch statistics are
    what the run begins with. Its time counts, reading the images apart: the record's time before
    the first step is the pretraining's, and what a user who has the weights already would save.
    Such a user names them as the model's `weights_file`.

    The other images must have as many channels; they are not augmented, and of their own size.

    Source: the blog post "Training Time Speed Ups". Deviation: the final layer is not trained
    alone first, and all layers have one rate.
    """

    slot: ClassVar[Slot] = "init"
    untimed_fields = frozenset({"dataset", "train_samples", "epochs", "batch_size"})
    conflicts: ClassVar[dict[str, str]] = {
        "boosted": "pretraining would train the blocks of the first stage alone.",
        "easiest_first": "its groups are those of other classes.",
    }

    dataset: Annotated[DatasetConfig, Component(DATASETS, tag="name")]
    """The other data set by name, with its fields."""
    train_samples: int | None = Field(default=None, ge=1)
    """Images of it, with the classes in proportion; null: all of its training part but a tenth."""
    epochs: int = Field(default=1, ge=1, le=1000)
    """Passes over them."""
    batch_size: int = Field(default=128, ge=2, le=65_536)
    """Images of a step."""

    def located(self) -> Self:
        """Returns the same with an absolute path to the data."""
        return self.model_copy(update={"dataset": self.dataset.located()})

    def read_data(self) -> None:
        """Reads the other data set into memory. Raises: ConfigError, DataError."""
        from tune_speed.components.speedups.modules.other_data import read_other

        read_other(self.dataset, self.train_samples)

    def init_weights(self, model: "nn.Module", start: Start) -> None:
        """Trains a copy of the model on the other data set, and takes over what it learned."""
        from tune_speed.components.speedups.modules.other_data import learn_from_other

        other = (self.dataset, self.train_samples)
        learn_from_other(model, start, other, epochs=self.epochs, batch_size=self.batch_size)

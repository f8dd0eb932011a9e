"""The speed-ups of one recipe: one a slot, called in the slots' order."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from tune_speed.components.speedups import SPEEDUPS
from tune_speed.components.speedups.base import Off, RecipeView, Shape, Slot, SpeedupConfig, Start
from tune_speed.core.config import Component, Config
from tune_speed.core.errors import Problem

if TYPE_CHECKING:
    from torch import Tensor, nn


def in_slot(slot: Slot) -> dict[str, type[SpeedupConfig]]:
    """Returns the speed-ups of a slot, by name; the first is none."""
    return {"off": Off} | {name: kind for name, kind in SPEEDUPS.items() if kind.slot == slot}


class Speedups(Config):
    """What makes this recipe differ from plain training, apart from its settings."""

    init: Annotated[SpeedupConfig, Component(in_slot("init"))] = Off()
    """What the weights are before the first step."""
    dropout: Annotated[SpeedupConfig, Component(in_slot("dropout"))] = Off()
    """Dropout that the network brings."""
    depth: Annotated[SpeedupConfig, Component(in_slot("depth"))] = Off()
    """Which blocks of the network a step trains."""
    backward: Annotated[SpeedupConfig, Component(in_slot("backward"))] = Off()
    """How much of the gradient is computed."""
    selection: Annotated[SpeedupConfig, Component(in_slot("selection"))] = Off()
    """Which samples of a batch are learned from."""
    resolution: Annotated[SpeedupConfig, Component(in_slot("resolution"))] = Off()
    """Size of the images over the run."""
    batch_growth: Annotated[SpeedupConfig, Component(in_slot("batch_growth"))] = Off()
    """Samples of a step over the run."""
    loss: Annotated[SpeedupConfig, Component(in_slot("loss"))] = Off()
    """What is minimised."""
    averaging: Annotated[SpeedupConfig, Component(in_slot("averaging"))] = Off()
    """Which weights are evaluated."""
    views: Annotated[SpeedupConfig, Component(in_slot("views"))] = Off()
    """How evaluation looks at an image."""

    @model_validator(mode="after")
    def _are_compatible(self) -> Self:
        for reason in conflicts(self.named()):
            raise ValueError(reason)
        return self

    @model_serializer(mode="wrap")
    def _without_empty_slots(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return {slot: value for slot, value in fields.items() if value != {"off": {}}}

    def named(self) -> dict[str, SpeedupConfig]:
        names = {kind: name for name, kind in SPEEDUPS.items()}
        return {names[type(chosen)]: chosen for chosen in self.chosen}

    @property
    def chosen(self) -> tuple[SpeedupConfig, ...]:
        entries = (getattr(self, slot) for slot in type(self).model_fields)
        return tuple(entry for entry in entries if type(entry) is not Off)

    def located(self) -> Self:
        return self.model_copy(update={"init": self.init.located()})

    def read_data(self) -> None:
        for speedup in self.chosen:
            speedup.read_data()

    def refusals(self, recipe: RecipeView) -> Iterator[Problem]:
        for speedup in self.chosen:
            yield from speedup.refusals(recipe)

    def speed_fields(self) -> dict[str, Any]:
        fields = {name: speedup.speed_fields() for name, speedup in self.named().items()}
        return {name: value for name, value in fields.items() if value}

    @property
    def period(self) -> int:
        return math.lcm(*(speedup.period for speedup in self.chosen))

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        for speedup in self.chosen:
            speedup.check_model(model)
            model = speedup.change_model(model, num_classes=num_classes, seed=seed)
        return model

    def begin(self, model: "nn.Module", *, seed: int) -> None:
        for speedup in self.chosen:
            speedup.begin(model, seed=seed)

    def state(self, model: "nn.Module") -> dict[str, dict[str, Any]]:
        states = {name: speedup.state(model) for name, speedup in self.named().items()}
        return {name: state for name, state in states.items() if state}

    def restore(self, model: "nn.Module", states: dict[str, dict[str, Any]]) -> None:
        named = self.named()
        for name, state in states.items():
            named[name].restore(model, state)

    def init_weights(self, model: "nn.Module", start: Start) -> None:
        for speedup in self.chosen:
            speedup.init_weights(model, start)

    @property
    def sets_weights(self) -> bool:
        """Whether anything has to be done on the clock before the first step."""
        return any(
            type(speedup).init_weights is not SpeedupConfig.init_weights for speedup in self.chosen
        )

    @property
    def leaves_gradients_out(self) -> bool:
        return any(speedup.leaves_gradients_out for speedup in self.chosen)

    def shape(self, shape: Shape, *, frac: float) -> Shape:
        for speedup in self.chosen:
            shape = speedup.shape(shape, frac=frac)
        return shape

    def begin_step(self, model: "nn.Module", shape: Shape) -> None:
        for speedup in self.chosen:
            speedup.begin_step(model, shape)

    @property
    def takes_several_labels(self) -> bool:
        return any(speedup.takes_several_labels for speedup in self.chosen)

    def change_batch(
        self, images: "Tensor", labels: "Tensor", shape: Shape
    ) -> "tuple[Tensor, Tensor]":
        for speedup in self.chosen:
            images, labels = speedup.change_batch(images, labels, shape)
        return images, labels

    def sum_of_losses(
        self,
        logits: "Tensor",
        labels: "Tensor",
        *,
        frac: float,
        label_smoothing: float,
        class_weights: tuple[float, ...] = (),
    ) -> "Tensor | None":
        for speedup in self.chosen:
            given: dict[str, Any] = {"frac": frac, "label_smoothing": label_smoothing}
            given |= {"class_weights": class_weights} if speedup.takes_class_weights else {}
            loss = speedup.sum_of_losses(logits, labels, **given)
            if loss is not None:
                return loss
        return None

    def predict(self, model: "nn.Module", images: "Tensor") -> "Tensor":
        logits = self.views.predict(model, images)
        return model(images) if logits is None else logits


def conflicts(named: "dict[str, SpeedupConfig]", others: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields why techniques exclude each other, given those with configs and other names."""
    for name, speedup in named.items():
        for other, reason in speedup.conflicts.items():
            if other in named or other in others:
                yield f"{name} and {other} cannot be had together: {reason}"

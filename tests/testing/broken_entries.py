from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import nn

from tune_speed.components import (
    DatasetConfig,
    DecodedData,
    Factors,
    Images,
    Metric,
    ModelConfig,
    OnProgress,
    OptimizerConfig,
    ScheduleConfig,
    Shape,
    Slot,
    SpeedupConfig,
)
from tune_speed.core.records import RunResult


def flat(in_channels: int, image_size: int, num_classes: int) -> nn.Sequential:
    size = in_channels * image_size**2
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 4), nn.ReLU(), nn.Linear(4, num_classes))


class Good(ModelConfig):
    """Two dense layers."""

    width: int = 4
    """Not used."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        return flat(in_channels, image_size, num_classes)


class Undocumented(Good):
    pass


class BareField(Good):
    """Two dense layers."""

    depth: int = 2


class NoDefault(Good):
    """Two dense layers."""

    depth: int
    """How many."""


class TakesATuple(Good):
    """Two dense layers."""

    widths: tuple[int, ...] = (4, 8)
    """YAML has no tuples."""


class ChangesWhatItReads(Good):
    """Each reading makes it wider."""

    @field_validator("width")
    @classmethod
    def _wider(cls, width: int) -> int:
        return width + 1

    width: int = Field(default=4, validate_default=True)
    """Not used."""


class DrawsInCheck(Good):
    """Its check is a training of its own."""

    def check(self, *, in_channels: int, num_classes: int, image_size: int) -> None:
        torch.randn(1)


def model(doc: str, made: Callable[..., Any]) -> type[Good]:
    """Returns a model whose network is what `made` makes of channels, size and classes."""

    def network(self: Any, *, in_channels: int, num_classes: int, image_size: int) -> Any:
        return made(in_channels, image_size, num_classes)

    return type("Model", (Good,), {"__doc__": doc, "__module__": __name__, "network": network})


class Detached(nn.Sequential):
    def forward(self, images: torch.Tensor) -> Any:
        for number, layer in enumerate(self):
            images = layer(images).detach() if number == 1 else layer(images)
        return images


class OfTheBatch(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images - images.mean(dim=0)


class InFloat32(nn.Linear):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return features @ self.weight


class OtherArguments(Good):
    """Its arguments have other names."""

    def network(self, channels: int, classes: int) -> nn.Module:  # type: ignore[override]
        return flat(channels, 32, classes)


def zeros(*sizes: int) -> nn.Module:
    network = nn.Sequential(flat(*sizes), nn.Threshold(1, 0))
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    return network


def of_numpy(*sizes: int) -> nn.Module:
    network = flat(*sizes)
    weight = network.get_parameter("1.weight")
    if not weight.is_meta:
        weight.data.copy_(torch.from_numpy(np.random.default_rng().normal(size=weight.shape)))
    return network


def mixed(channels: int, size: int, classes: int) -> nn.Module:
    return nn.Sequential(
        flat(channels, size, 4), InFloat32(4, 4, bias=False), nn.Linear(4, classes)
    )


TenClasses = model("Always ten logits.", lambda c, size, k: flat(c, size, 10))
ThreeChannels = model("Always three channels.", lambda c, size, k: flat(3, size, k))
Evaluating = model("In evaluation mode.", lambda *sizes: flat(*sizes).eval())
CutOff = model("No gradient reaches the first layer.", lambda *sizes: Detached(*flat(*sizes)))
Zeros = model("All weights begin as 0, which never ends.", zeros)
OwnSeed = model("Seeded by itself.", lambda *sizes: (torch.manual_seed(0), flat(*sizes))[1])
Unseeded = model("Weights are NumPy's.", of_numpy)
NormalisedByBatch = model(
    "Evaluation looks at the batch.", lambda *sizes: nn.Sequential(OfTheBatch(), flat(*sizes))
)
MixesTypes = model("Multiplies bf16 by float32.", mixed)


class Falling(ScheduleConfig):
    """Falls in a line."""

    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        return self.at(progress - step_frac, losses)

    def at(self, begun: float, losses: Any) -> Any:
        return Factors(lr=1 - begun, momentum=None)


def schedule(doc: str, at: Callable[..., Any], *, follows_loss: bool = False) -> type[Falling]:
    """Returns a schedule of what `at` gives at the beginning of a step, after some losses."""
    own = {
        "__doc__": doc,
        "__module__": __name__,
        "at": lambda self, begun, losses: at(begun, losses),
    }
    return type("Schedule", (Falling,), {**own, "follows_loss": follows_loss})


def factors(lr: float) -> Factors:
    return Factors(lr=lr, momentum=None)


CALLS = iter(range(1, 10**9))
Remembering = schedule("Counts its own steps.", lambda begun, losses: factors(1 / next(CALLS)))
ToZero = schedule("No rate in the first step.", lambda begun, losses: factors(begun))
PlainFloat = schedule("Gives a number.", lambda begun, losses: 1.0)
FollowsUnsaid = schedule(
    "Looks at losses, unsaid.", lambda begun, losses: factors(0.5 if losses else 1.0)
)
SortsLosses = schedule(
    "Changes what it is given.",
    lambda begun, losses: (isinstance(losses, list) and losses.sort(), factors(1 - begun))[1],
    follows_loss=True,
)


class Descent(torch.optim.Optimizer):
    """w <- w - lr g, with what can be wrong about it."""

    def __init__(self, groups: Iterable[Any], *, wrong: str, lr: float) -> None:
        super().__init__(groups, {"lr": lr})
        self.wrong, self.lr = wrong, lr
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None and self.wrong != "closure":
            with torch.enable_grad():
                loss = closure()
        self.num_steps += 1
        for group in self.param_groups:
            lr = self.lr if self.wrong == "rate" else group["lr"]
            lr *= -1 if self.wrong == "direction" else 1
            lr *= 2 if self.wrong == "memory" and self.num_steps < 4 else 1
            for parameter in group["params"]:
                self._update(parameter, group, lr)
        return loss

    def _update(self, parameter: Any, group: Any, lr: float) -> None:
        if parameter.grad is None:
            parameter.mul_(0.9 if self.wrong == "absent" else 1)
            return
        decay = 0.0 if self.wrong == "decay" else group["weight_decay"]
        parameter.sub_(lr * (parameter.grad + decay * parameter))


class Sound(OptimizerConfig):
    """Gradient descent."""

    wrong: ClassVar[str] = "nothing"

    def build(
        self, model: nn.Module, *, effective_batch_size: int, fused: bool
    ) -> torch.optim.Optimizer:
        return self.over(self.groups(model, effective_batch_size), model, fused)

    def over(self, groups: list[Any], model: nn.Module, fused: bool) -> torch.optim.Optimizer:
        return Descent(groups, wrong=self.wrong, lr=self.step_lr(1))


def optimizer(doc: str, **own: Any) -> type[Sound]:
    return type("Optimizer", (Sound,), {"__doc__": doc, "__module__": __name__, **own})


def over_frozen(self: Sound, groups: list[Any], model: nn.Module, fused: bool) -> Any:
    groups[-1]["params"] += [p for p in model.parameters() if not p.requires_grad]
    return Sound.over(self, groups, model, fused)


def over_two_rules(self: Sound, groups: list[Any], model: nn.Module, fused: bool) -> Any:
    return (torch.optim.Rprop if fused else torch.optim.SGD)(groups, lr=self.lr)


def over_all(self: Sound, groups: list[Any], model: nn.Module, fused: bool) -> Any:
    return torch.optim.SGD(model.parameters(), lr=self.lr)


KeepsItsRate = optimizer("Does not look at the groups' rate.", wrong="rate")
Ascends = optimizer("Goes the wrong way.", wrong="direction")
ForgetsItsSteps = optimizer("Its state dict lacks what its steps need.", wrong="memory")
HoldsFrozen = optimizer("Holds all parameters, in groups like ours.", over=over_frozen)
NeverDecays = optimizer("Passes over weight decay.", wrong="decay")
MovesTheAbsent = optimizer("Moves weights that have no gradient.", wrong="absent")
NoClosure = optimizer("Passes over a closure.", wrong="closure")
NoFusedKernel = optimizer("Another rule where fused kernels are asked for.", over=over_two_rules)
BareGroups = optimizer("Does not build over `self.groups`.", over=over_all)


class Noise(DatasetConfig):
    """Noise in two classes."""

    location_fields: ClassVar[frozenset[str]] = frozenset()
    num_images: ClassVar[int] = 20

    def num_train(self) -> int:
        return self.num_images

    def num_test(self) -> int | None:
        return None

    def sources(self) -> list[Path]:
        return []

    def pixels(self) -> Any:
        return np.random.default_rng(0).integers(0, 256, (20, 5, 5, 1), dtype=np.uint8)

    def labels(self) -> Any:
        return np.arange(20) % 2

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        on_progress(20, 20)
        return DecodedData(Images(self.pixels(), self.labels()), None, ("a", "b"))


def data_set(doc: str, **own: Any) -> type[Noise]:
    return type("Data", (Noise,), {"__doc__": doc, "__module__": __name__, **own})


def one_image(self: Noise, *, download: bool, on_progress: OnProgress) -> DecodedData:
    on_progress(1, 1)
    return DecodedData(Images(self.pixels()[:1], self.labels()[:1]), None, ("a", "b"))


def silently(self: Noise, *, download: bool, on_progress: OnProgress) -> DecodedData:
    return Noise.decode(self, download=download, on_progress=lambda *_: None)


def shares(self: Noise) -> Any:
    return (Noise.pixels(self) / 255).astype(np.float32)


def drawn(self: Noise) -> Any:
    return np.random.default_rng().integers(0, 256, (20, 5, 5, 1), dtype=np.uint8)


LabelsFromOne = data_set("Labels from 1.", labels=lambda self: np.arange(20) % 2 + 1)
ShortLabels = data_set("Small integers.", labels=lambda self: (np.arange(20) % 2).astype(np.uint8))
ListOfLabels = data_set("Its labels are not an array.", labels=lambda self: [0, 1] * 10)
Normalised = data_set("Its pixels are shares.", pixels=shares)
ChannelsFirst = data_set(
    "Its channels come first.", pixels=lambda self: Noise.pixels(self).transpose(0, 3, 1, 2)
)
OneOfAKind = data_set("One image, none to set aside.", num_images=1, decode=one_image)
Miscounted = data_set("It says another number of images.", num_images=21)
Drawn = data_set("Other noise each time.", pixels=drawn)
Silent = data_set("It says nothing of its progress.", decode=silently)
FolderAsSource = data_set("Names a folder.", sources=lambda self: [Path("/")])
NoSuchField = data_set("Its place is not a field.", location_fields=frozenset({"root"}))


class Still(SpeedupConfig):
    """Does nothing."""

    slot: ClassVar[Slot] = "loss"


class NoSlot(SpeedupConfig):
    """In no slot."""


class Fading(nn.Module):
    """Scales a network's logits by how often it was called."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.num_calls = network, 0

    def forward(self, images: torch.Tensor) -> Any:
        self.num_calls += self.training
        return self.network(images) * (1 + 0.1 * self.num_calls)


class CountsOn(Still):
    """Its network counts its calls, and nothing puts that back."""

    def change_model(self, model: nn.Module, *, num_classes: int, seed: int) -> nn.Module:
        return Fading(model)


class CountsUnsaved(CountsOn):
    """It begins anew, and is not saved."""

    def begin(self, model: nn.Module, *, seed: int) -> None:
        assert isinstance(model, Fading)
        model.num_calls = 0


class DrawsAHead(Still):
    """Its new layer is NumPy's."""

    def change_model(self, model: nn.Module, *, num_classes: int, seed: int) -> nn.Module:
        layer = nn.Linear(num_classes, num_classes)
        drawn = np.random.default_rng().normal(size=(num_classes, num_classes))
        layer.weight.data.copy_(torch.from_numpy(drawn))
        return nn.Sequential(model, layer)


class LeavesOut(Still):
    """Its new layer is never used."""

    def change_model(self, model: nn.Module, *, num_classes: int, seed: int) -> nn.Module:
        model.add_module("spare", nn.Linear(2, 2))
        return model


def speedup(doc: str, **own: Any) -> type[Still]:
    return type("Speedup", (Still,), {"__doc__": doc, "__module__": __name__, **own})


def mean_loss(self: Still, logits: Any, labels: Any, *, frac: float, label_smoothing: float) -> Any:
    return nn.functional.cross_entropy(logits, labels)


def fails(self: Still, model: nn.Module, shape: Shape) -> None:
    raise KeyError("depth")


def reseeds(self: Still, model: nn.Module, *, seed: int) -> None:
    torch.manual_seed(seed)


def every_other(self: Still, images: Any, labels: Any, shape: Shape, *, losses: Any) -> Any:
    return images[::2], labels[::2]


def drawn_shape(self: Still, shape: Shape, *, frac: float) -> Shape:
    return shape._replace(stage=int(np.random.default_rng().integers(10**9)))


def half_shape(self: Still, shape: Shape, *, frac: float) -> Shape:
    return shape._replace(height=shape.height // 2)


GivesNoReason = speedup("Bars another technique.", conflicts={"mixup": " "})
MeanLoss = speedup("A mean instead of a sum.", sum_of_losses=mean_loss)
FailsToBegin = speedup("Its own code has a mistake.", begin_step=fails)
Reseeds = speedup("Seeds the random numbers of all.", begin=reseeds)
HalvesBatches = speedup("Keeps half of a batch, unsaid.", slot="selection", choose=every_other)
OtherShapeEachTime = speedup("Its shapes are drawn.", shape=drawn_shape)
ChangesInCheck = speedup("Sets the mode.", check_model=lambda self, model: model.eval())
TwiceTheLogits = speedup(
    "Two logits a class in evaluation.",
    predict=lambda self, model, images: model(images).repeat(1, 2),
)
EndsSmall = speedup("Images never grow whole.", slot="resolution", shape=half_shape)


def needs_a_target(run: RunResult) -> float | None:
    return run.evaluations[-1].accuracy


def counts(run: RunResult) -> Any:
    return run.steps or 0


def sums(logits: torch.Tensor, labels: torch.Tensor) -> float:
    return float(logits.mul_(2).sum())


TERSE = Metric(about="Accuracy", unit="1", source="own")
NO_UNIT = Metric(about="Accuracy of the last evaluation.", unit="", source="own")
FAILS_EARLY = Metric(
    about="Accuracy at the very end.", unit="1", source="own", of_run=needs_a_target
)
GIVES_INTEGERS = Metric(about="How many steps it took.", unit="1", source="own", of_run=counts)
CHANGES_LOGITS = Metric(about="Sum of all the logits.", unit="1", source="own", of_logits=sums)

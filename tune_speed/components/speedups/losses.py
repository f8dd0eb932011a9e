"""Losses other than cross-entropy."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from tune_speed.components.speedups import modules
from tune_speed.components.speedups.base import Slot, SpeedupConfig, Start, refusal

if TYPE_CHECKING:
    from torch import Tensor, nn


FOCAL = "speedups.loss.focal"


class Focal(SpeedupConfig):
    """Focal loss on a sigmoid for each class, whose final biases begin at a prior π.

    With p_t = p for the sample's class and 1 − p for others, and α_t likewise, the loss is
    Σ_classes −α_t (1 − p_t)^γ ln p_t: what is right already counts little. Predictions are the
    class with the largest logit, as always. Final weights begin as N(0, 0.01²) and biases as
    −ln((1 − π)/π), so that every class begins with the probability π; otherwise the many wrong
    classes would dominate the first steps. The cross-entropy that a sample begins with,
    −ln π − (K − 1) ln(1 − π), is least at π = 1/K for K classes.

    A ReLU after the final layer, which SqueezeNet has, is left out: under a bias that far below 0
    it would let no gradient through, and a sigmoid of it could not fall below 1/2.

    Source: Lin et al. 2017, Focal Loss for Dense Object Detection (arXiv:1708.02002), sections 3.3
    and 4.1; torchvision.ops.sigmoid_focal_loss.
    """

    untimed_fields = frozenset({"prior"})
    switch_fields = frozenset({"alpha", "gamma"})
    slot: ClassVar[Slot] = "loss"
    takes_several_labels: ClassVar[bool] = True
    conflicts: ClassVar[dict[str, str]] = {
        "boosted": "each has a loss of its own.",
        "pretrain_subset": "the prior would replace the final layer that pretraining made.",
    }

    alpha: float | None = Field(default=0.25, ge=0, le=1)
    """Weight of the sample's class, where others weigh 1 − alpha; null: all weigh 1."""
    gamma: float = Field(default=2.0, ge=0, le=10)
    """How little counts what is right already; 0: plain binary cross-entropy."""
    prior: float | None = Field(default=0.01, gt=0, lt=1)
    """Probability π that each class begins with; null: the final layer stays as it is."""

    def check_model(self, model: "nn.Module") -> None:
        _, layer = modules.heads.find_classifier(model, path=FOCAL)
        if self.prior is not None and layer.bias is None:
            must = "must have a final layer with a bias"
            raise refusal(f"{FOCAL}.prior", must=must, given=type(model).__name__)

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        modules.heads.drop_relu(model, modules.heads.find_classifier(model, path=FOCAL)[0])
        return model

    def init_weights(self, model: "nn.Module", start: Start) -> None:
        if self.prior is not None:
            _, layer = modules.heads.find_classifier(model, path=FOCAL)
            modules.heads.set_prior(layer, self.prior)

    def sum_of_losses(
        self, logits: "Tensor", labels: "Tensor", *, frac: float, label_smoothing: float
    ) -> "Tensor | None":
        return modules.losses.sum_of_focal_losses(
            logits, labels, alpha=self.alpha, gamma=self.gamma, label_smoothing=label_smoothing
        )


class Bce(SpeedupConfig):
    """Binary cross-entropy: each class is a question of its own, by a sigmoid.

    The loss of a sample is −Σ_c w_c (t_c ln p_c + (1 − t_c) ln(1 − p_c)), with p_c = sigmoid of the
    logit, the target t_c after label smoothing, t (1 − s) + s/K of K classes, and the recipe's
    `class_weights` w. It takes several labels an image, and soft ones.

    Source: Wightman et al. 2021, ResNet strikes back (arXiv:2110.00476), section 2.2; timm's
    BinaryCrossEntropy with `sum_classes`. Deviation: soft and several labels are smoothed, too.
    """

    switch_fields = frozenset({"target_threshold"})
    slot: ClassVar[Slot] = "loss"
    takes_several_labels: ClassVar[bool] = True
    takes_class_weights: ClassVar[bool] = True
    conflicts: ClassVar[dict[str, str]] = {"boosted": "each has a loss of its own."}

    target_threshold: float | None = Field(default=None, gt=0, lt=1)
    """Targets above it become 1 and others 0, so that a mixed image is wholly of each class of
    which it has more than this share; null: targets stay soft."""

    def sum_of_losses(
        self,
        logits: "Tensor",
        labels: "Tensor",
        *,
        frac: float,
        label_smoothing: float,
        class_weights: tuple[float, ...] = (),
    ) -> "Tensor | None":
        from torch.nn.functional import binary_cross_entropy_with_logits

        own, smoothing = modules.losses, label_smoothing
        targets = own.targets_of(labels, logits.shape[1], label_smoothing=smoothing)
        if self.target_threshold is not None:
            targets = (targets > self.target_threshold).float()
        weight = own.weights_on(logits.device, class_weights)
        return binary_cross_entropy_with_logits(logits, targets, weight=weight, reduction="sum")


EASIEST_FIRST = "speedups.loss.easiest_first"
Group = Annotated[int, Field(ge=0, lt=10_000)]
# YAML and JSON have lists, which strict validation does not take for a tuple.
Groups = Annotated[tuple[Group, ...], Field(strict=False)]


class EasiestFirst(SpeedupConfig):
    """Easiest task first: the network learns to classify groups of classes, then the classes too.

    A second head classifies the groups by the same features. The loss is w_g(s) · cross-entropy of
    the groups + w_c(s) · cross-entropy of the classes at progress s: w_g is 1, and w_c 0 up to
    `start_frac`, from where it grows to 1 within `ramp_frac`. Evaluation sees the classes' head
    alone. CIFAR-100's 20 superclasses are such groups.

    Source: the blog post "Training Time Speed Ups"; tasks with weights over progress as in
    curriculum learning, Bengio et al. 2009. (Guo et al. 2018, dynamic task prioritisation, put the
    hardest first.) Difficulty, a reference's error, need not be measured: who is right about a
    class is right about its group, so no reference errs more often on groups. Deviation: weights
    follow a schedule, not the tasks' errors.
    """

    slot: ClassVar[Slot] = "loss"
    is_recordable: ClassVar[bool] = False
    conflicts: ClassVar[dict[str, str]] = {
        "boosted": "each changes the final layer and the loss.",
        "selective_backprop": "it ranks samples by a loss that knows of no second head.",
    }

    groups: Literal["cifar100"] | Groups = "cifar100"
    """Group of each class, from 0, as a list; cifar100: its 20 superclasses."""
    start_frac: float = Field(default=0.1, ge=0, lt=1)
    """Share of the run after which classes begin to count."""
    ramp_frac: float = Field(default=0.1, ge=0, le=1)
    """Share of the run within which they come to count whole."""

    @field_validator("groups")
    @classmethod
    def _check_groups(cls, value: str | tuple[int, ...]) -> str | tuple[int, ...]:
        if not value or (value != "cifar100" and set(value) != set(range(len(set(value))))):
            raise ValueError("groups must be numbered from 0 without a gap")
        return value

    @property
    def group_of(self) -> tuple[int, ...]:
        return self.groups if isinstance(self.groups, tuple) else cifar100_groups()

    def weights(self, frac: float) -> tuple[float, float]:
        """Returns the weights of groups and classes at `frac` of the run."""
        if frac <= self.start_frac:
            return 1.0, 0.0
        if frac >= self.start_frac + self.ramp_frac:
            return 1.0, 1.0
        return 1.0, (frac - self.start_frac) / self.ramp_frac

    def check_model(self, model: "nn.Module") -> None:
        from torch import nn

        _, layer = modules.heads.find_classifier(model, path=EASIEST_FIRST)
        if not isinstance(layer, nn.Linear):
            must = "must have a network with a final linear layer"
            raise refusal(EASIEST_FIRST, must=must, given=type(model).__name__)

    def speed_fields(self) -> dict[str, Any]:
        """Returns the number of groups, which the second head has as outputs."""
        return {"groups": len(set(self.group_of))}

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        """Raises: ConfigError if `groups` are for another number of classes."""
        if len(self.group_of) != num_classes:
            raise refusal(
                f"{EASIEST_FIRST}.groups",
                must=f"must name a group for each of the data set's {num_classes} classes",
                given=f"{len(self.group_of)} groups",
            )
        name, layer = modules.heads.find_classifier(model, path=EASIEST_FIRST)
        model.set_submodule(name, modules.heads.TwoHeads(layer, num_groups=len(set(self.group_of))))
        return model

    def sum_of_losses(
        self, logits: "Tensor", labels: "Tensor", *, frac: float, label_smoothing: float
    ) -> "Tensor | None":
        return modules.losses.sum_of_task_losses(
            logits,
            labels,
            group_of=self.group_of,
            weights=self.weights(frac),
            label_smoothing=label_smoothing,
        )


SUPERCLASSES = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
"""Names of the classes of each superclass, in the order of the superclasses' numbers."""


def cifar100_groups() -> tuple[int, ...]:
    superclass_of = {
        name: number for number, names in enumerate(SUPERCLASSES.values()) for name in names.split()
    }
    return tuple(superclass_of[name] for name in sorted(superclass_of))

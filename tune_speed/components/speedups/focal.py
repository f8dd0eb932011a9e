"""Focal loss, one class against the rest, with a prior of the classes in the final bias."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from tune_speed.components.speedups.base import Slot, SpeedupConfig, Start, refusal

if TYPE_CHECKING:
    from torch import Tensor, nn

PATH = "speedups.loss.focal"


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
        """Raises: ConfigError if the network has no final layer with a bias."""
        from tune_speed.components.speedups.modules.heads import find_classifier

        _, layer = find_classifier(model, path=PATH)
        if self.prior is not None and layer.bias is None:
            must = "must have a final layer with a bias"
            raise refusal(f"{PATH}.prior", must=must, given=type(model).__name__)

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        """Returns `model`, whose logits are those of its final layer, without a ReLU."""
        from tune_speed.components.speedups.modules.heads import drop_relu, find_classifier

        drop_relu(model, find_classifier(model, path=PATH)[0])
        return model

    def init_weights(self, model: "nn.Module", start: Start) -> None:
        """Sets the final layer to the prior, with weights from torch's generator."""
        from tune_speed.components.speedups.modules.heads import find_classifier, set_prior

        if self.prior is not None:
            _, layer = find_classifier(model, path=PATH)
            set_prior(layer, self.prior)

    def sum_of_losses(
        self, logits: "Tensor", labels: "Tensor", *, frac: float, label_smoothing: float
    ) -> "Tensor | None":
        """Returns the sum over samples and classes of the focal loss [nat]."""
        from tune_speed.components.speedups.modules.losses import sum_of_focal_losses

        return sum_of_focal_losses(
            logits, labels, alpha=self.alpha, gamma=self.gamma, label_smoothing=label_smoothing
        )

"""Backward passes by the largest gradients only."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from tune_speed.components.speedups.base import Slot, SpeedupConfig, refusal

if TYPE_CHECKING:
    from torch import nn


class MeProp(SpeedupConfig):
    """meProp: hidden linear layers pass back the k largest output gradients only.

    For y = x Wᵀ + b the forward pass is exact. Backward, dŷ is dy with all but the k largest |dy|
    of each sample set to 0; then dx = dŷ W, dW = dŷᵀ x, and db = Σ dy as it was. `unified` keeps
    the same k outputs for the whole micro-batch, those with the largest Σ |dy| over it, so that
    both products shrink to k rows of W; without it they stay dense, and nothing is saved by
    torch's kernels. A layer with no more than k outputs is left as it is.

    The output layer is exact: the last linear layer, and any with as many outputs. VGG, AlexNet
    and transformers, where a sample is one position of one image, have hidden linear layers.
    ResNets have none; for them there is `conv_frac`, which is ours, not the paper's: a convolution
    passes back the channels with the largest Σ |dy| over micro-batch and pixels.

    Source: Sun et al., "meProp", ICML 2017, and the unified variant of their code,
    lancopku/meProp.
    Deviations: `conv_frac`; the sum that chooses the unified outputs is taken in fp32 whatever the
    precision.
    """

    slot: ClassVar[Slot] = "backward"
    is_recordable: ClassVar[bool] = False

    k: int = Field(default=80, ge=1)
    """Outputs of a layer whose gradient is passed back, at least 1."""
    unified: bool = True
    """Keep the same outputs for all samples of a micro-batch, which saves time."""
    conv_frac: float | None = Field(default=None, gt=0, lt=1)
    """Share of a convolution's output channels whose gradient is passed back, in (0, 1), at least
    one channel; null: convolutions are exact."""

    def check_model(self, model: "nn.Module") -> None:
        """Raises: ConfigError if no hidden layer is linear, or a convolution with a `conv_frac`."""
        from tune_speed.components.speedups.modules.sparse_backward import (
            hidden_convolutions,
            hidden_linears,
        )

        if hidden_linears(model) or (self.conv_frac and hidden_convolutions(model)):
            return
        raise refusal(
            "speedups.backward.meprop",
            must="must have a network with a linear layer besides its output layer, such as VGG,"
            " AlexNet or ViT",
            given=f"{type(model).__name__} with none",
            hint=None if self.conv_frac else "Try conv_frac for a network of convolutions.",
        )

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        """Returns `model`, with the same parameters by the same names."""
        from tune_speed.components.speedups.modules.sparse_backward import (
            sparsify,
            sparsify_convolutions,
        )

        sparsify(model, k=self.k, unified=self.unified)
        if self.conv_frac is not None:
            sparsify_convolutions(model, frac=self.conv_frac)
        return model

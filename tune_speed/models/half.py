"""A network in fp16 throughout: weights, statistics and activations."""

from torch import Tensor, nn


class Half(nn.Module):
    """Images of any type in, fp16 logits (N, K) out; without a master copy of the weights.

    A step smaller than 2^-11 of a weight is lost, and gradients below 2^-24 are zero: a negative
    control beside autocast, which keeps weights and their updates in fp32.

    Source: Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740, on what is lost.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.half()

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits."""
        logits: Tensor = self.network(images.half())
        return logits

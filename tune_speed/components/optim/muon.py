"""Momentum whose steps are orthogonal matrices, for hidden weights; SGD for the rest."""

from typing import TYPE_CHECKING, Any

from pydantic import Field

from tune_speed.components.optim.base import OptimizerConfig, fused_or_default, with_bias_lr

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

Groups = list[dict[str, Any]]


class Muon(OptimizerConfig):
    r"""Muon: hidden weights step by their orthogonalised momentum, all others by SGD.

    With gradient g, one step of a hidden weight of shape (D0, D1, …), seen as a matrix of D0 rows
    and D1 * … columns, is

        b <- momentum b + g,   u = g + momentum b   (without nesterov: u = b)
        w <- w - lr sqrt(max(1, rows / columns)) O(u)

    where O(U S V^T) is about U V^T. Weight decay is decoupled for all weights: before the step,
    w <- w - lr weight_decay w.

    Hidden are the tensors of two or more dimensions, except the model's first and last such
    tensor, frozen ones counted, and all heads: those meet pixels and classes, whose directions
    differ in scale and are not to be made equal. Depthwise convolutions and tokens (one row or one
    input channel) are no matrices, and are left out too. The others get SGD rather than AdamW, as
    in the CIFAR-10 speed records: its momentum, too, is one that schedules can cycle.

    Beware of rates of SGD from elsewhere: they multiply the gradient of the mean loss here, and of
    the sum over the batch in the CIFAR-10 record. `lr` has no such unit, as O(u) has no scale.

    Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024, and
    KellerJordan/cifar10-airbench, airbench94_muon.py. Deviation: decoupled decay for SGD as well.
    """

    untimed_fields = OptimizerConfig.untimed_fields | {"sgd_lr"}
    switch_fields = OptimizerConfig.switch_fields | {"momentum", "sgd_momentum", "bias_lr"}

    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of all weights, in [0, 1); the CIFAR-10 record has 0.6 for hidden weights. A
    schedule that cycles the momentum replaces it."""
    nesterov: bool = True
    """Nesterov's form of momentum, for all weights."""
    sgd_momentum: float | None = Field(default=None, ge=0, lt=1)
    """Momentum of the weights that get SGD, in [0, 1); null: `momentum`. The CIFAR-10 record has
    0.85. A schedule that cycles the momentum replaces it."""
    sgd_lr: float | None = Field(default=None, gt=0)
    """Rate of SGD for first and last layer, norms and biases, above 0, in the unit of `lr`; null:
    `lr`. The CIFAR-10 record has 0.67 (last layer) with a `lr` of 0.24, for a loss summed over
    2,000 images and logits scaled by 1/256; for the mean, and 1/9 as in `speednet`, that is 1.7."""
    bias_lr: float | None = Field(default=None, gt=0)
    """Rate of SGD for norms and biases, above 0, in the unit of `lr`; null: as the other weights
    that get SGD. The CIFAR-10 record has 0.053 for a loss summed over 2,000 images: 106 for the
    mean."""
    newton_schulz_steps: int = Field(default=5, ge=1, le=20)
    """Iterations of the orthogonalisation; the CIFAR-10 record has 3."""
    normalize_weights: bool = False
    """Before each step scale every hidden weight to the norm sqrt(rows), as the CIFAR-10 record
    does; only where a normalisation layer follows every hidden layer."""

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        """Returns the optimizer; `fused` is for SGD's part."""
        from tune_speed.components.optim.torch.muon import MuonOptimizer

        return MuonOptimizer(
            self.groups(model, effective_batch_size),
            momentum=self.momentum,
            nesterov=self.nesterov,
            newton_schulz_steps=self.newton_schulz_steps,
            normalize_weights=self.normalize_weights,
            fused=fused_or_default(fused),
        )

    def is_recordable(self, *, fused: bool, is_scaled: bool) -> bool:
        """Returns whether SGD's kernels are the fused ones, and no scaler asks for overflows."""
        return fused and not is_scaled

    def groups(self, model: "nn.Module", effective_batch_size: int) -> Groups:
        """Returns the groups of every optimizer, split in hidden and other weights, and biases."""
        rate = self.bias_lr and self.rate_of_step(self.bias_lr, effective_batch_size)
        return with_bias_lr(self._hidden_and_others(model, effective_batch_size), rate)

    def _hidden_and_others(self, model: "nn.Module", effective_batch_size: int) -> Groups:
        hidden = hidden_weights(model)
        ratio = 1.0 if self.sgd_lr is None else self.sgd_lr / self.lr
        momentum = self.momentum if self.sgd_momentum is None else self.sgd_momentum
        groups = []
        for group in super().groups(model, effective_batch_size):
            rate = group["lr"]
            for is_hidden, lr, m in ((True, rate, self.momentum), (False, rate * ratio, momentum)):
                weights = [w for w in group["params"] if (id(w) in hidden) == is_hidden]
                settings = {"lr": lr, "base_lr": lr, "momentum": m, "orthogonal": is_hidden}
                groups += [{**group, **settings, "params": weights}] if weights else []
        return groups


def hidden_weights(model: "nn.Module") -> set[int]:
    """Returns the `id`s of the weights that Muon orthogonalises."""
    from tune_speed.components.speedups.modules.heads import heads_of

    heads = {id(layer.weight) for _, layer in heads_of(model)}
    # Tokens and position embeddings have one row; a convolution of grey images has many.
    weights = [p for p in model.parameters() if p.ndim > 1 and p.shape[0] > 1]
    return {id(p) for p in weights[1:-1] if p.shape[1] > 1} - heads

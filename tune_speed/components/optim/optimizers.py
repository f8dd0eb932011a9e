"""The optimizers as recipes name them; those that torch lacks are in `torch`."""

from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from tune_speed.components.optim import base

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Sgd(base.OptimizerConfig):
    r"""SGD with momentum m, in torch's form: the rate multiplies the momentum buffer b.

    With gradient g, weights w and weight decay d, one step of rate lr is

        g <- g + d w                   (decoupled: w <- w - lr d w instead)
        b <- m b + g                   (first step: b <- g)
        w <- w - lr (g + m b)          (without nesterov: w <- w - lr b)

    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning",
    2013; decoupled: Loshchilov and Hutter, arXiv 1711.05101, as timm's SGDW, where d is scaled by
    the rate of the step (the paper scales it by the schedule alone). SGDW has no fused kernels.
    """

    switch_fields = base.OptimizerConfig.switch_fields | {"momentum", "bias_lr"}

    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum, in [0, 1); a schedule that cycles the momentum replaces it."""
    nesterov: bool = True
    """Nesterov's form of momentum; needs a momentum above 0."""
    decoupled_weight_decay: bool = False
    """Shrink the weights separately from the step instead of adding the decay to the gradient."""
    bias_lr: float | None = Field(default=None, gt=0)
    """Rate of norms and biases, the tensors of at most one dimension, above 0, in the unit of `lr`;
    null: `lr`. The CIFAR-10 record's SGD variant (airbench94) has 64 times `lr` for norms."""

    lr_scales: base.LrScales = ()

    @model_validator(mode="after")
    def _check_nesterov(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("`momentum` must be above 0 where `nesterov` is true")
        return self

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        groups = self.groups(model, effective_batch_size)
        settings: dict[str, Any] = {"momentum": self.momentum, "nesterov": self.nesterov}
        if self.decoupled_weight_decay:
            from timm.optim import SGDW

            sgdw: Optimizer = SGDW(groups, **settings)
            return sgdw
        from torch.optim import SGD

        from tune_speed.components.optim.torch.tensor_lists import momentum_buffers

        optimizer = SGD(groups, **settings, fused=base.fused_or_default(fused))
        if fused:
            # Torch makes buffers as gradients come, but its fused kernel fails where some weights
            # had one before others, as with blocks that are skipped at random. Without momentum
            # too: a schedule may give some.
            for group in optimizer.param_groups:
                momentum_buffers(optimizer, group["params"])
        return optimizer

    def is_recordable(self, *, fused: bool, is_scaled: bool) -> bool:
        """Returns whether its kernels are the fused ones: others take rates from the host."""
        return fused and not self.decoupled_weight_decay

    def groups(self, model: "nn.Module", effective_batch_size: int) -> base.Groups:
        rate = self.bias_lr and self.rate_of_step(self.bias_lr, effective_batch_size)
        groups = base.with_bias_lr(super().groups(model, effective_batch_size), rate)
        return base.with_lr_scales(groups, model, self.lr_scales)


class Adam(base.OptimizerConfig):
    """Adam with coupled (L2) weight decay: weight_decay * weight is added to the gradient.

    With gradient g and step t = 1, 2, …: m is the running mean of g (factor beta1), v that of g^2
    (factor beta2), and w <- w - lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps).

    Source: Kingma and Ba, arXiv 1412.6980; the code is torch.optim.Adam.
    """

    untimed_fields = base.OptimizerConfig.untimed_fields | {"beta1", "beta2", "eps"}

    torch_name: ClassVar[str] = "Adam"

    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Memory of the mean gradient, in [0, 1); a schedule that cycles the momentum replaces it."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Memory of the mean squared gradient, in [0, 1)."""
    eps: float = Field(default=1e-8, gt=0)
    """Keeps the divisor from 0, above 0."""

    lr_scales: base.LrScales = ()

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        import torch

        optimizer: Optimizer = getattr(torch.optim, self.torch_name)(
            base.with_lr_scales(self.groups(model, effective_batch_size), model, self.lr_scales),
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            fused=base.fused_or_default(fused),
        )
        return optimizer

    def is_recordable(self, *, fused: bool, is_scaled: bool) -> bool:
        """Returns whether the fused kernels know the loss scale; it is `capturable` by itself."""
        return fused or not is_scaled


class AdamW(Adam):
    """Adam with decoupled weight decay: before each step, w <- w - lr * weight_decay * w.

    The rate is that of the step, so that a schedule scales the decay too.

    Source: Loshchilov and Hutter, arXiv 1711.05101; the code is torch.optim.AdamW, whose default
    decay is 0.01 (ours is 0, as for every optimizer).
    """

    torch_name: ClassVar[str] = "AdamW"


class Swats(base.OptimizerConfig):
    r"""SWATS: Adam, which switches to SGD at the rate that Adam's steps turn out to amount to.

    With p the step that Adam takes and g the gradient, over all weights together, the rate at
    which SGD's step, projected on p, would be p is

        r = p.p / (-p.g),   and its debiased running mean (factor beta2) is R.

    After the first step k > 1 with |R - r| < switch_tolerance * R, or several such steps in a row,
    all weights continue with v <- beta1 v + g,  w <- w - (1 - beta1) R v,  from v = 0. Weight decay
    is part of g throughout.

    Before the switch the host waits for the device once a step, because it must know which of the
    two to launch; after it, never. (So a step time that is measured beforehand is Adam's.) The
    schedule's factor is divided out of r and multiplies R.

    Source: Keskar and Socher, arXiv 1712.07628, algorithm 1. Deviations: the tolerance is relative
    to R (the paper's absolute 1e-9 hardly ever fires on noisy gradients); R must be above 0; eps is
    added after the bias correction, as in torch.optim.Adam, whose code the first phase is.
    """

    finds_rate: ClassVar[bool] = True

    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Memory of the mean gradient, and momentum after the switch, in [0, 1); a schedule that cycles
    the momentum replaces it."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Memory of the mean squared gradient and of the rate's running mean, in [0, 1)."""
    eps: float = Field(default=1e-9, gt=0)
    """Keeps Adam's divisor from 0, above 0."""
    switch_tolerance: float = Field(default=1e-3, gt=0, lt=1)
    """Largest relative difference of the rate and its running mean at the switch, in (0, 1);
    1e-9 to 1e-2 is worth a search."""
    switch_steps_in_row: int = Field(default=1, ge=1)
    """Steps in a row that the difference must stay so small, from 1: ratios that spread pass their
    mean by chance. Runs record mean and spread as `swats_rate` and `swats_spread`."""
    switch_at_step: int | None = Field(default=None, ge=1)
    """Optimizer step, from 1, after which the switch is made at the latest, if the running mean is
    above 0 there (otherwise as soon as it is); null: by the tolerance alone."""

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        from tune_speed.components.optim.torch.swats import Criterion, SwatsOptimizer

        return SwatsOptimizer(
            self.groups(model, effective_batch_size),
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            criterion=Criterion(
                self.switch_tolerance, self.switch_steps_in_row, self.switch_at_step
            ),
            fused=base.fused_or_default(fused),
        )


class YellowFin(base.OptimizerConfig):
    """YellowFin: SGD whose rate and momentum follow from the gradients' size, spread and mean.

    In each step it estimates the range of curvature, the gradient's variance and the distance to
    the optimum, takes the momentum and rate that minimise the expected distance after a step on a
    noisy quadratic, raises the rate slowly over the first 10 * window steps, and steps as torch's
    SGD. `lr` is a factor on that rate, the paper's `lr_factor`: 1 leaves YellowFin alone. A
    schedule's factor multiplies it too; a schedule's momentum has no effect. Weight decay is part
    of the gradient, also of the one that the estimates see. It costs about five more passes over
    the gradient than SGD; nothing in a step waits for the device.

    Source: Zhang and Mitliagkas, "YellowFin and the art of momentum tuning", arXiv 1706.03471;
    JianGoForIt/YellowFin_Pytorch, without its restoring of checkpoints and its options
    (auto_clip_fac, force_non_inc_step, sparsity_debias); clip_thresh is the recipe's clip_norm.
    """

    untimed_fields = base.OptimizerConfig.untimed_fields | {"beta"}
    finds_rate: ClassVar[bool] = True

    lr: float = Field(default=1.0, gt=0)
    """Factor on the rate that YellowFin finds, above 0; 1 is YellowFin's own."""
    beta: float = Field(default=0.999, ge=0, lt=1)
    """Memory of all running means, in [0, 1)."""
    window: int = Field(default=20, ge=1)
    """Steps over which the least and largest squared norm of the gradient are taken."""
    clip: bool = True
    """From the third step on: clip the norm to sqrt(100 h_max) before the estimates, a gradient
    with squared norm of h_max or more to norm sqrt(h_max) before the step, and the rate so that
    rate * norm <= 100, with the largest curvature h_max of the step before."""
    closed_loop: bool = False
    """Measure the momentum that the weights show, and lower the one applied where the two differ,
    as under asynchronous training (algorithm 5). Only for asynchronous loops of your own, at the
    cost of four more copies of the weights and a median over them: without `staleness` the two are
    equal, and a recipe's training has none."""
    staleness: int = Field(default=0, ge=0, le=100)
    """Steps taken between the weights that a gradient is of and the step that it is applied in, for
    `closed_loop`. Algorithm 5 has it from asynchronous workers. Every training of a recipe is
    synchronous, with accumulation and several devices too: another than 0 would pair steps with
    gradients of other weights."""

    @model_validator(mode="after")
    def _check_loop(self) -> Self:
        if self.closed_loop and not self.staleness:
            raise ValueError(
                "`closed_loop` must be false where `staleness` is 0: gradients of the weights that"
                " they are applied to show the momentum that was applied, and nothing is corrected"
            )
        return self

    def rate_factor(self, samples: int, *, of: int) -> float:
        """Returns 1: it finds the rate of the steps that it takes."""
        return 1.0

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        """Returns the optimizer; `fused` is of no use to it: its rate is known on the device."""
        from tune_speed.components.optim.torch.yellowfin import YellowFinOptimizer

        fields = self.model_dump(include={"beta", "window", "clip", "closed_loop", "staleness"})
        return YellowFinOptimizer(self.groups(model, effective_batch_size), **fields)


class Muon(base.OptimizerConfig):
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

    untimed_fields = base.OptimizerConfig.untimed_fields | {"sgd_lr"}
    switch_fields = base.OptimizerConfig.switch_fields | {"momentum", "sgd_momentum", "bias_lr"}

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
        from tune_speed.components.optim.torch.muon import MuonOptimizer

        return MuonOptimizer(
            self.groups(model, effective_batch_size),
            momentum=self.momentum,
            nesterov=self.nesterov,
            newton_schulz_steps=self.newton_schulz_steps,
            normalize_weights=self.normalize_weights,
            fused=base.fused_or_default(fused),
        )

    def is_recordable(self, *, fused: bool, is_scaled: bool) -> bool:
        """Returns whether SGD's kernels are the fused ones, and no scaler asks for overflows."""
        return fused and not is_scaled

    def groups(self, model: "nn.Module", effective_batch_size: int) -> base.Groups:
        rate = self.bias_lr and self.rate_of_step(self.bias_lr, effective_batch_size)
        return base.with_bias_lr(self._hidden_and_others(model, effective_batch_size), rate)

    def _hidden_and_others(self, model: "nn.Module", effective_batch_size: int) -> base.Groups:
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
    from tune_speed.components.speedups.modules.heads import heads_of

    heads = {id(layer.weight) for _, layer in heads_of(model)}
    # Tokens and position embeddings have one row; a convolution of grey images has many.
    weights = [p for p in model.parameters() if p.ndim > 1 and p.shape[0] > 1]
    return {id(p) for p in weights[1:-1] if p.shape[1] > 1} - heads

"""What holds for every model."""

import torch
from torch import nn
from torch.nn import functional

from tune_speed.components.models.base import ModelConfig
from tune_speed.testing.entry import ConfigContracts, seeded

# Numbers of images, classes and channels differ, so that two in each other's place are seen.
NUM_IMAGES = 4
NUM_CLASSES = 7
CHANNELS = (1, 3)
SIGNATURE = "`def network(self, *, in_channels: int, num_classes: int, image_size: int)`"


class ModelContracts(ConfigContracts[ModelConfig]):
    """What holds for every model."""

    table = "MODELS"

    def _build(self, *, in_channels: int = 3, seed: int = 0) -> nn.Module:
        config, size = self._config(), self.image_size
        claim = f"`network` must build for images of {in_channels} x {size} x {size}"
        fix = f"It is called as {SIGNATURE} and returns an nn.Module."
        with self._working(claim, fix=fix, seed=seed):
            shape = {"in_channels": in_channels, "num_classes": NUM_CLASSES}
            network = config.build(**shape, image_size=size)
        self._require(
            isinstance(network, nn.Module),
            "`network` must return an nn.Module",
            seen=f"it returned {type(network).__name__}",
            fix="End it with `return` and the network, with fresh weights.",
        )
        return network

    def _images(self, *, in_channels: int = 3) -> torch.Tensor:
        size = (NUM_IMAGES, in_channels, self.image_size, self.image_size)
        return torch.randn(size, generator=torch.Generator().manual_seed(0))

    def _logits(self, network: nn.Module, images: torch.Tensor) -> torch.Tensor:
        fix = "Take the channels from `in_channels`, the size from `image_size` (or pool globally)."
        claim = f"the network must take images of the shape {tuple(images.shape)}"
        with self._working(claim, fix=fix):
            logits: torch.Tensor = network(images)
        return logits

    def logits_are_one_row_an_image_and_one_column_a_class(self) -> None:
        """With one channel and with three."""
        for in_channels in CHANNELS:
            network = self._build(in_channels=in_channels)
            logits = self._logits(network, self._images(in_channels=in_channels))
            shape = tuple(getattr(logits, "shape", ()))
            self._require(
                shape == (NUM_IMAGES, NUM_CLASSES),
                f"logits must have the shape (images, classes), here ({NUM_IMAGES}, {NUM_CLASSES})",
                seen=f"have {shape}" if shape else f"the network gave a {type(logits).__name__}",
                fix="Let the last layer have `num_classes` outputs, on flat features of an image.",
            )

    def network_begins_in_training_mode(self) -> None:
        """The training loop does not switch it."""
        network = self._build()
        still = [name or "the network" for name, m in network.named_modules() if not m.training]
        claim, fix = "the network must begin in training mode", "Leave out `.eval()` in `network`."
        seen = f"in evaluation mode is {', '.join(still[:5])}"
        self._require(not still, claim, seen=seen, fix=fix)

    def gradients_reach_every_weight(self) -> None:
        """And are finite, and not all zero."""
        network = self._build()
        # For what `forward` itself draws, as dropout does.
        with seeded(0):
            logits = self._logits(network, self._images())
        fix = "Let `forward` return logits that depend on the weights by torch's operations."
        with self._working("the network must be differentiable", fix=fix):
            functional.cross_entropy(logits, torch.arange(NUM_IMAGES)).backward()  # type: ignore[no-untyped-call]
        trained = {name: p.grad for name, p in network.named_parameters() if p.requires_grad}
        missed = [name for name, gradient in trained.items() if gradient is None]
        self._require(
            bool(trained) and not missed,
            "a gradient must reach every weight",
            seen=f"none reaches {', '.join(f'`{name}`' for name in missed[:5]) or 'any'}",
            fix="Use the weight in `forward`, without `.detach()` or `torch.no_grad()`; leave out"
            " layers that are not used; set requires_grad to False for what is not trained.",
        )
        gradients = {name: gradient for name, gradient in trained.items() if gradient is not None}
        wild = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
        self._require(
            not wild,
            "gradients must be finite",
            seen=f"they are not in {', '.join(f'`{name}`' for name in wild[:5])}",
            fix="Look for logarithms, roots and divisions of 0, and for large initial weights.",
        )
        self._require(
            any(bool(gradient.any()) for gradient in gradients.values()),
            "a gradient must be other than 0 somewhere",
            seen="all are 0 everywhere",
            fix="Look at initial weights of 0 and at activations that never let anything through.",
        )

    def weights_follow_from_the_seed(self) -> None:
        """One seed, one network; another seed, another network."""
        # A sum a parameter: copies of the largest networks would take gigabytes.
        networks = [self._build(seed=seed) for seed in (1, 1, 2)]
        first, again, other = (
            [float(p.detach().sum(dtype=torch.float64)) for p in each.parameters()]
            for each in networks
        )
        claim = "initial weights must be the same for the same torch seed"
        fix = "Draw them by torch (nn.init, torch.randn), not by numpy or random."
        self._require(first == again, claim, seen="they differ", fix=fix)
        claim = "initial weights must differ for another torch seed"
        fix = "Leave out torch.manual_seed, and generators with a seed of their own, in `network`."
        self._require(first != other, claim, seen="they are the same", fix=fix)

    def check_leaves_random_numbers_alone(self) -> None:
        """`check` runs before a training, whose draws must not depend on it."""
        sizes = {"num_classes": NUM_CLASSES, "image_size": self.image_size}
        fix = (
            "Leave out torch.manual_seed in `network`; in a `check` of your own draw within"
            " torch.random.fork_rng(devices=[])."
        )
        with (
            self._drawing_nothing("check", fix=fix),
            self._working("`check` must accept its images", fix="See the message above."),
        ):
            self._config().check(in_channels=1, **sizes)

    def evaluation_looks_at_each_image_by_itself(self) -> None:
        """So that accuracy does not depend on the batch size of the evaluation."""
        network, images = self._build().eval(), self._images()
        with torch.no_grad():
            together = self._logits(network, images)
            alone = torch.cat([self._logits(network, image[None]) for image in images])
        gap = float((together - alone).abs().max())
        scale = max(1.0, float(together.abs().max()))
        self._require(
            # Not equal: kernels may sum in another order for another batch size.
            gap <= 1e-3 * scale,
            "in evaluation an image's logits must be the same in a batch and alone",
            seen=f"they differ by {gap:.2g}",
            fix="Switch dropout off where `self.training` is false, and normalise by running"
            " statistics, not by those of the batch.",
        )

    def trains_under_bf16(self) -> None:
        """Recipes may say `precision: bf16`."""
        network = self._build()
        with torch.autocast("cpu", torch.bfloat16):
            logits = self._logits(network, self._images())
            with self._working(
                "a step under bf16 autocast must work",
                fix="Do not mix types by hand: let autocast choose, and make new tensors with the"
                " `dtype` of those that come in.",
            ):
                # In fp32, as the training loop computes its loss.
                functional.cross_entropy(logits.float(), torch.arange(NUM_IMAGES)).backward()  # type: ignore[no-untyped-call]
        claim = "logits under bf16 autocast must be finite"
        fix = "Compute sums over many values, and exponentials, in float32."
        self._require(bool(logits.isfinite().all()), claim, seen="some are not", fix=fix)

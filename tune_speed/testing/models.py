"""What holds for every model."""

import torch
from torch import nn
from torch.nn import functional

from tune_speed.components.models.base import ModelConfig
from tune_speed.testing.entry import ConfigContracts, Seen, draws, named, seeded

# Numbers of images, classes and channels differ, so that two in each other's place are seen.
NUM_IMAGES = 4
NUM_CLASSES = 7
CHANNELS = (1, 3)


class ModelContracts(ConfigContracts[ModelConfig]):
    """What holds for every model."""

    table = "MODELS"

    def _build(self, *, in_channels: int = 3, seed: int = 0) -> nn.Module:
        shape = {"in_channels": in_channels, "num_classes": NUM_CLASSES}
        with seeded(seed):
            return self._config().build(**shape, image_size=self.image_size)

    def _images(self, *, in_channels: int = 3) -> torch.Tensor:
        size = (NUM_IMAGES, in_channels, self.image_size, self.image_size)
        return torch.randn(size, generator=torch.Generator().manual_seed(0))

    def logits_are_one_row_an_image_and_one_column_a_class(self) -> Seen:
        """Take `in_channels` and `image_size` (or pool), and end with `num_classes` outputs."""
        for in_channels in CHANNELS:
            network = self._build(in_channels=in_channels)
            if not isinstance(network, nn.Module):
                yield f"`network` returned a {type(network).__name__}, not an nn.Module"
            logits = network(self._images(in_channels=in_channels))
            shape = tuple(getattr(logits, "shape", ()))
            if shape != (NUM_IMAGES, NUM_CLASSES):
                has = f"have the shape {shape}" if shape else f"are a {type(logits).__name__}"
                yield f"they {has}, not ({NUM_IMAGES}, {NUM_CLASSES})"

    def network_begins_in_training_mode(self) -> Seen:
        """Leave out `.eval()` in `network`: the training loop does not switch it."""
        modules = self._build().named_modules()
        if still := [name or "the network" for name, module in modules if not module.training]:
            yield f"in evaluation mode is {named(still)}"

    def gradients_reach_every_weight(self) -> Seen:
        """Use each in `forward`, undetached, or set requires_grad to False; let none begin as 0."""
        network = self._build()
        # For what `forward` itself draws, as dropout does.
        with seeded(0):
            _backward(network(self._images()))
        trained = {name: p.grad for name, p in network.named_parameters() if p.requires_grad}
        gradients = {name: gradient for name, gradient in trained.items() if gradient is not None}
        if not gradients or len(gradients) < len(trained):
            yield f"none reaches {named(trained.keys() - gradients) or 'any'}"
        if wild := [name for name, each in gradients.items() if not each.isfinite().all()]:
            yield f"they are not finite in {named(wild)}: look for divisions by 0, large weights"
        if not any(bool(gradient.any()) for gradient in gradients.values()):
            yield "all are 0"

    def weights_follow_from_the_seed(self) -> Seen:
        """Draw them by torch, not by numpy or random, without torch.manual_seed or a generator."""
        # A sum a parameter: copies of the largest networks would take gigabytes.
        networks = [self._build(seed=seed) for seed in (1, 1, 2)]
        first, again, other = (
            [float(p.detach().sum(dtype=torch.float64)) for p in each.parameters()]
            for each in networks
        )
        if first != again:
            yield "they differ for the same torch seed"
        if first == other:
            yield "they are the same for another torch seed"

    def check_leaves_random_numbers_alone(self) -> Seen:
        """Leave out torch.manual_seed in `network`; `check` draws in torch.random.fork_rng."""
        config, sizes = self._config(), {"num_classes": NUM_CLASSES, "image_size": self.image_size}
        if draws(lambda: config.check(in_channels=1, **sizes)):
            yield "some were drawn or seeded"

    def evaluation_looks_at_each_image_by_itself(self) -> Seen:
        """Switch dropout off where `self.training` is false; normalise by running statistics."""
        network, images = self._build().eval(), self._images()
        with torch.no_grad():
            together = network(images)
            alone = torch.cat([network(image[None]) for image in images])
        gap = float((together - alone).abs().max())
        # Not equal: kernels may sum in another order for another batch size.
        if not gap <= 1e-3 * max(1.0, float(together.abs().max())):
            yield f"an image's logits in a batch and alone differ by {gap:.2g}"

    def trains_under_bf16(self) -> Seen:
        """Let autocast choose types; give new tensors the `dtype` of those that come in."""
        network = self._build()
        with torch.autocast("cpu", torch.bfloat16):
            logits = network(self._images())
            _backward(logits)
        if not logits.isfinite().all():
            yield "some logits are not finite: compute sums and exponentials in float32"


def _backward(logits: torch.Tensor) -> None:
    # In fp32, as the training loop computes its loss.
    functional.cross_entropy(logits.float(), torch.arange(NUM_IMAGES)).backward()  # type: ignore[no-untyped-call]

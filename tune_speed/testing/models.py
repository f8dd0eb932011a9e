"""What holds for every model."""

import torch
from torch import nn
from torch.nn import functional

from tune_speed.components.models.base import ModelConfig
from tune_speed.testing.entry import Entry, seeded

# Numbers of images, classes and channels differ, so that two in each other's place are seen.
NUM_IMAGES = 4
NUM_CLASSES = 7
CHANNELS = (1, 3)
SIGNATURE = "`def network(self, *, in_channels: int, num_classes: int, image_size: int)`"


def build(entry: Entry[ModelConfig], *, in_channels: int = 3, seed: int = 0) -> nn.Module:
    """Returns a fresh network, whose weights follow from the seed. Raises: ContractError."""
    config, size = entry.config(), entry.image_size
    claim = f"`network` must build for images of {in_channels} x {size} x {size}"
    fix = f"It is called as {SIGNATURE} and returns an nn.Module."
    with entry.working(claim, fix=fix, seed=seed):
        network = config.build(in_channels=in_channels, num_classes=NUM_CLASSES, image_size=size)
    entry.require(
        isinstance(network, nn.Module),
        "`network` must return an nn.Module",
        seen=f"it returned {type(network).__name__}",
        fix="End it with `return` and the network, with fresh weights.",
    )
    return network


def images_for(entry: Entry[ModelConfig], *, in_channels: int = 3) -> torch.Tensor:
    """Returns random images (N, C, H, W)."""
    generator = torch.Generator().manual_seed(0)
    size = (NUM_IMAGES, in_channels, entry.image_size, entry.image_size)
    return torch.randn(size, generator=generator)


def logits_of(entry: Entry[ModelConfig], network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Returns the network's output. Raises: ContractError if it fails."""
    fix = "Take the channels from `in_channels`, the size from `image_size` (or pool globally)."
    with entry.working(f"the network must take images of the shape {tuple(images.shape)}", fix=fix):
        logits: torch.Tensor = network(images)
    return logits


def logits_are_one_row_an_image_and_one_column_a_class(entry: Entry[ModelConfig]) -> None:
    """With one channel and with three."""
    for in_channels in CHANNELS:
        network = build(entry, in_channels=in_channels)
        logits = logits_of(entry, network, images_for(entry, in_channels=in_channels))
        shape = tuple(getattr(logits, "shape", ()))
        entry.require(
            shape == (NUM_IMAGES, NUM_CLASSES),
            f"logits must have the shape (images, classes), here ({NUM_IMAGES}, {NUM_CLASSES})",
            seen=f"have {shape}" if shape else f"the network gave a {type(logits).__name__}",
            fix="Let the last layer have `num_classes` outputs, on flat features of an image.",
        )


def network_begins_in_training_mode(entry: Entry[ModelConfig]) -> None:
    """The training loop does not switch it."""
    network = build(entry)
    still = [name or "the network" for name, part in network.named_modules() if not part.training]
    claim = "the network must begin in training mode"
    fix = "Leave out `.eval()` in `network`."
    entry.require(not still, claim, seen=f"in evaluation mode is {', '.join(still[:5])}", fix=fix)


def gradients_reach_every_weight(entry: Entry[ModelConfig]) -> None:
    """And are finite, and not all zero."""
    network = build(entry)
    # For what `forward` itself draws, as dropout does.
    with seeded(0):
        logits = logits_of(entry, network, images_for(entry))
    fix = "Let `forward` return logits that depend on the weights by torch's operations."
    with entry.working("the network must be differentiable", fix=fix):
        functional.cross_entropy(logits, torch.arange(NUM_IMAGES)).backward()  # type: ignore[no-untyped-call]
    trained = {name: p.grad for name, p in network.named_parameters() if p.requires_grad}
    missed = [name for name, gradient in trained.items() if gradient is None]
    entry.require(
        bool(trained) and not missed,
        "a gradient must reach every weight",
        seen=f"none reaches {', '.join(f'`{name}`' for name in missed[:5]) or 'any'}",
        fix="Use the weight in `forward`, without `.detach()` or `torch.no_grad()`; leave out"
        " layers that are not used; for weights that are not trained set requires_grad to False.",
    )
    gradients = {name: gradient for name, gradient in trained.items() if gradient is not None}
    wild = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    entry.require(
        not wild,
        "gradients must be finite",
        seen=f"they are not in {', '.join(f'`{name}`' for name in wild[:5])}",
        fix="Look for logarithms, roots and divisions of 0, and for initial weights that are too"
        " large.",
    )
    entry.require(
        any(bool(gradient.any()) for gradient in gradients.values()),
        "a gradient must be other than 0 somewhere",
        seen="all are 0 everywhere",
        fix="Look at initial weights of 0 and at activations that never let anything through.",
    )


def weights_follow_from_the_seed(entry: Entry[ModelConfig]) -> None:
    """One seed, one network; another seed, another network."""
    # A sum a parameter: copies of the largest networks would take gigabytes.
    first, again, other = (
        [float(p.detach().sum(dtype=torch.float64)) for p in build(entry, seed=seed).parameters()]
        for seed in (1, 1, 2)
    )
    claim = "initial weights must be the same for the same torch seed"
    fix = "Draw them by torch (nn.init, torch.randn), not by numpy or random."
    entry.require(first == again, claim, seen="they differ", fix=fix)
    claim = "initial weights must differ for another torch seed"
    fix = "Leave out torch.manual_seed, and generators with a seed of their own, in `network`."
    entry.require(first != other, claim, seen="they are the same", fix=fix)


def check_leaves_random_numbers_alone(entry: Entry[ModelConfig]) -> None:
    """`check` runs before a training, whose draws must not depend on it."""
    before = torch.get_rng_state()
    size = entry.image_size
    with entry.working("`check` must accept its images", fix="See the message above."):
        entry.config().check(in_channels=1, num_classes=NUM_CLASSES, image_size=size)
    entry.require(
        torch.equal(torch.get_rng_state(), before),
        "`check` must leave torch's random numbers alone",
        seen="it has drawn or seeded some",
        fix="Leave out torch.manual_seed in `network`; in a `check` of your own draw within"
        " torch.random.fork_rng(devices=[]).",
    )


def evaluation_looks_at_each_image_by_itself(entry: Entry[ModelConfig]) -> None:
    """So that accuracy does not depend on the batch size of the evaluation."""
    network, images = build(entry).eval(), images_for(entry)
    with torch.no_grad():
        together = logits_of(entry, network, images)
        alone = torch.cat([logits_of(entry, network, image[None]) for image in images])
    gap = float((together - alone).abs().max())
    scale = max(1.0, float(together.abs().max()))
    entry.require(
        # Not equal: kernels may sum in another order for another batch size.
        gap <= 1e-3 * scale,
        "in evaluation an image's logits must be the same in a batch and alone",
        seen=f"they differ by {gap:.2g}",
        fix="Switch dropout off where `self.training` is false, and normalise by running"
        " statistics, not by those of the batch.",
    )


def trains_under_bf16(entry: Entry[ModelConfig]) -> None:
    """Recipes may say `precision: bf16`."""
    network = build(entry)
    with torch.autocast("cpu", torch.bfloat16):
        logits = logits_of(entry, network, images_for(entry))
        with entry.working(
            "a step under bf16 autocast must work",
            fix="Do not mix types by hand: let autocast choose, and make new tensors with the"
            " `dtype` of those that come in.",
        ):
            # In fp32, as the training loop computes its loss.
            functional.cross_entropy(logits.float(), torch.arange(NUM_IMAGES)).backward()  # type: ignore[no-untyped-call]
    claim = "logits under bf16 autocast must be finite"
    fix = "Compute sums over many values, and exponentials, in float32."
    entry.require(bool(logits.isfinite().all()), claim, seen="some are not", fix=fix)

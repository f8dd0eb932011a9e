"""A few steps of a training on a small network, through all that a speed-up may change.

The training loop makes the same calls, in the same order, with whole recipes.
"""

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.plain_cnn import PlainCNN
from tune_speed.components.models.resnet20 import ResNet20
from tune_speed.components.speedups.base import Shape, SpeedupConfig, Start
from tune_speed.core.errors import ConfigError
from tune_speed.testing.entry import ContractError, Entry, seeded

NUM_CLASSES = 10
NUM_IMAGES = 8
NUM_STEPS = 4
"""Optimizer steps of the whole run."""
# A speed-up is checked with the first that it accepts: shortcuts, or dropout and no shortcuts.
MODELS: tuple[ModelConfig, ...] = (ResNet20(), PlainCNN(width=8, batch_norm=True))


def whole(entry: Entry[SpeedupConfig]) -> Shape:
    """Returns the shape of a step on images as they are."""
    return Shape(entry.image_size, entry.image_size)


def accepted(entry: Entry[SpeedupConfig]) -> nn.Module:
    """Returns the entry's network, or the first small one that it accepts, not yet changed.

    Raises:
        ContractError: It accepts none.
    """
    config, refusals = entry.config(), list[str]()
    models = (entry.model,) if entry.model else MODELS
    for model in models:
        with seeded(0):
            network = model.build(
                in_channels=3, num_classes=NUM_CLASSES, image_size=entry.image_size
            )
            try:
                config.check_model(network)
            except ConfigError as refusal:
                refusals.append(str(refusal))
            else:
                return network
    raise ContractError(
        f"{entry.label}: `check_model` must accept a network for {NUM_CLASSES} classes, here"
        f" {' or '.join(map(repr, models))}, but it said: {' '.join(refusals)} Give the contracts a"
        " `model` that it accepts, or `fields` with which it does."
    )


def changed(entry: Entry[SpeedupConfig]) -> nn.Module:
    """Returns the network as it is trained. Raises: ContractError."""
    network = accepted(entry)
    with (
        seeded(0),
        entry.working(
            "`change_model` must return the network that is trained",
            fix="It is called as `def change_model(self, model, *, num_classes, seed)`.",
        ),
    ):
        return entry.config().change_model(network, num_classes=NUM_CLASSES, seed=0)


def begin(entry: Entry[SpeedupConfig], network: nn.Module) -> None:
    """Sets the weights and begins, as before the first step."""
    config = entry.config()
    config.read_data()
    with (
        seeded(2),
        entry.working(
            "`begin` and `init_weights` must work",
            fix="They are called as `def begin(self, model, *, seed)` and"
            " `def init_weights(self, model, start)`.",
        ),
    ):
        config.begin(network, seed=0)
        config.begin_step(network, config.shape(whole(entry), frac=0.0))
        config.init_weights(network, start_of(entry))


def batch(entry: Entry[SpeedupConfig], number: int) -> tuple[Tensor, Tensor]:
    """Returns images (N, C, H, W) and their labels (N,)."""
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(NUM_IMAGES, 3, *whole(entry)[:2], generator=generator)
    return images, torch.arange(NUM_IMAGES) % NUM_CLASSES


def start_of(entry: Entry[SpeedupConfig]) -> Start:
    """Returns what weights may be derived from: four batches, and plain steps of SGD."""

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield from (batch(entry, number) for number in range(4))

    def fit(fitted: nn.Module, data: Iterator[tuple[Tensor, Tensor]], num_steps: int) -> None:
        optimizer = torch.optim.SGD(fitted.parameters(), lr=0.01)
        for images, labels in islice(data, num_steps):
            optimizer.zero_grad()
            # In training mode a changed network may have more outputs than classes.
            functional.cross_entropy(fitted(images)[:, :NUM_CLASSES], labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return Start(batches, 4 * NUM_IMAGES, NUM_CLASSES, NUM_IMAGES, torch.device("cpu"), 0, fit)


def run(entry: Entry[SpeedupConfig], network: nn.Module, steps: range, *, seed: int) -> list[float]:
    """Returns the loss of each of these steps of the run. Raises: ContractError."""
    optimizer, run_losses = torch.optim.SGD(network.parameters(), lr=0.01), list[float]()
    fix = "Look at the error below."
    with seeded(seed), entry.working("its part of a step must work", fix=fix):
        for step in steps:
            images, labels, _ = chosen(entry, network, step)
            logits, frac = network(images), (step + 1) / NUM_STEPS
            loss = loss_of(entry, logits, labels, frac=frac) / len(labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run_losses.append(float(loss.detach()))
    return run_losses


def chosen(
    entry: Entry[SpeedupConfig], network: nn.Module, step: int
) -> tuple[Tensor, Tensor, Shape]:
    """Returns the images and labels that a step learns from, and its shape."""
    config = entry.config()
    shape = config.shape(whole(entry), frac=step / NUM_STEPS)
    config.begin_step(network, shape)
    images, labels = batch(entry, step)

    @torch.no_grad()
    def losses(images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(network(images), labels, reduction="none")

    return *config.choose(config.change_batch(images, shape), labels, shape, losses=losses), shape


def loss_of(entry: Entry[SpeedupConfig], logits: Tensor, labels: Tensor, *, frac: float) -> Tensor:
    """Returns the sum of losses, the speed-up's or cross-entropy."""
    loss = entry.config().sum_of_losses(logits.float(), labels, frac=frac, label_smoothing=0.0)
    if loss is None:
        return functional.cross_entropy(logits.float(), labels, reduction="sum")
    return loss

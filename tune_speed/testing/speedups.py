"""What holds for every speed-up.

A few steps of a training on a small network go through all that a speed-up may change. The training
loop makes the same calls, in the same order, with whole recipes.
"""

import copy
from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.components.models.cifar import PlainCNN, ResNet, ResNet20
from tune_speed.components.speedups.base import Shape, SpeedupConfig, Start
from tune_speed.core.errors import ConfigError
from tune_speed.testing.entry import ConfigContracts, ContractError, Seen, draws, named, seeded
from tune_speed.training.preparation import without_trace

CPU = torch.device("cpu")
NUM_CLASSES = 10
NUM_IMAGES = 8
# Of the whole run.
NUM_STEPS = 4
# A speed-up is checked with the first that it accepts: few shortcuts, many, or none and dropout.
MODELS = (ResNet(depth=8), ResNet20(), PlainCNN(width=8, batch_norm=True))


class SpeedupContracts(ConfigContracts[SpeedupConfig]):
    """What holds for every speed-up."""

    table = "SPEEDUPS"

    @property
    def _whole(self) -> Shape:
        return Shape(self.image_size, self.image_size)

    def _accepted(self) -> nn.Module:
        """Returns the entry's network, or the first small one that it accepts, not yet changed."""
        refusals: list[str] = []
        sizes = {"num_classes": NUM_CLASSES, "image_size": self.image_size}
        for model in (self.model,) if self.model else MODELS:
            with seeded(0):
                network = model.build(in_channels=3, **sizes)
                try:
                    self._config().check_model(network)
                except ConfigError as refusal:
                    refusals.append(f"for {model!r}: {refusal}")
                else:
                    return network
        raise ContractError(
            f"{self._label}: `check_model` must accept a network, but it said {' '.join(refusals)}"
            " Give the contracts a `model` that it accepts, or `fields` with which it does."
        )

    def _changed(self) -> nn.Module:
        network = self._accepted()
        with seeded(0):
            return self._config().change_model(network, num_classes=NUM_CLASSES, seed=0)

    def _begun(self, changed: nn.Module | None = None) -> nn.Module:
        config, network = self._config(), self._changed() if changed is None else changed
        config.read_data()
        with seeded(2):
            config.begin(network, seed=0)
            config.begin_step(network, config.shape(self._whole, frac=0.0))
            config.init_weights(network, self._start())
        return network

    def _batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Returns images (N, C, H, W) and their labels (N,)."""
        generator = torch.Generator().manual_seed(number)
        images = torch.randn(NUM_IMAGES, 3, *self._whole[:2], generator=generator)
        return images, torch.arange(NUM_IMAGES) % NUM_CLASSES

    def _start(self) -> Start:

        def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
            yield from (self._batch(number) for number in range(4))

        def fit(fitted: nn.Module, data: Iterator[tuple[Tensor, Tensor]], num_steps: int) -> None:
            batches = islice(data, num_steps)
            # In training mode a changed network may have more outputs than classes.
            logits = ((fitted(images)[:, :NUM_CLASSES], labels) for images, labels in batches)
            _descend(fitted, (functional.cross_entropy(*each) for each in logits))

        sizes = (4 * NUM_IMAGES, NUM_CLASSES, NUM_IMAGES)
        return Start(batches, lambda share, passes: batches(0), *sizes, CPU, 0, fit)

    def _run(self, network: nn.Module, steps: range, *, seed: int) -> list[float]:
        def loss(step: int) -> Tensor:
            images, labels, _ = self._chosen(network, step)
            total = self._loss_of(network(images), labels, frac=(step + 1) / NUM_STEPS)
            return total / len(labels)

        with seeded(seed):
            return _descend(network, map(loss, steps))

    def _chosen(self, network: nn.Module, step: int) -> tuple[Tensor, Tensor, Shape]:
        config = self._config()
        shape = config.shape(self._whole, frac=step / NUM_STEPS)
        config.begin_step(network, shape)
        images, labels = self._batch(step)

        @torch.no_grad()
        def losses(images: Tensor, labels: Tensor) -> Tensor:
            return functional.cross_entropy(network(images), labels, reduction="none")

        images, labels = config.change_batch(images, labels, shape)
        return *config.choose(images, labels, shape, losses=losses), shape

    def _loss_of(self, logits: Tensor, labels: Tensor, *, frac: float) -> Tensor:
        loss = self._config().sum_of_losses(logits.float(), labels, frac=frac, label_smoothing=0.0)
        if loss is None:
            return functional.cross_entropy(logits.float(), labels, reduction="sum")
        return loss

    def conflicts_are_named(self) -> Seen:
        """Write `{"other": "each changes the final layer."}`, without its own name."""
        conflicts = self.entry.conflicts
        if self.name in conflicts or not all(reason.strip() for reason in conflicts.values()):
            yield f"it has {dict(conflicts)}"

    def growth_covers_the_run_and_it_ends_with_whole_images(self) -> Seen:
        """Let shares of `growth` add up to 1; return the given shape from `shape` near `frac` 1."""
        config = self._config()
        stages = config.growth()
        is_whole = all(factor >= 1 and factor == int(factor) for _, factor in stages)
        # Shares such as thirds add up to 1 but for rounding.
        if not is_whole or abs(sum(share for share, _ in stages) - 1) > 1e-6:
            yield f"`growth` gave {stages}"
        # Not 1: a step has the share of the run at its beginning, which is below 1.
        last = config.shape(self._whole, frac=0.999)
        if last[:2] != self._whole[:2] or last.kept_frac != 1:
            yield f"its end has {last}"

    def shape_is_a_pure_function(self) -> Seen:
        """Compute from `frac` and the fields alone: it is called for each step beforehand."""
        config, fracs = self._config(), [k / 20 for k in range(20)]
        first = [config.shape(self._whole, frac=frac) for frac in fracs]
        # Backwards, so that a shape that depends on earlier calls differs.
        again = [config.shape(self._whole, frac=frac) for frac in reversed(fracs)][::-1]
        for frac, one, two in zip(fracs, first, again, strict=True):
            if one != two:
                yield f"for {frac} it gave {one} and {two}"

    def check_model_leaves_the_network_alone(self) -> Seen:
        """Change the network in `change_model`."""
        network = self._accepted()
        before = copy.deepcopy(network.state_dict())
        self._config().check_model(network)
        if moved := _apart(before, network.state_dict()):
            yield f"it changed {named(moved)}"
        if not network.training:
            yield "it changed the network's mode"

    def the_changed_network_follows_from_the_seed(self) -> Seen:
        """Draw new weights by torch, not by numpy or random, and keep nothing in the class."""
        if apart := _apart(self._changed().state_dict(), self._changed().state_dict()):
            yield f"{named(apart)} differ for the same torch seed"

    def a_step_learns_from_as_many_samples_as_it_says(self) -> Seen:
        """Let `kept` and `choose` count alike, at least 1, and `change_batch` resize to `shape`."""
        network = self._begun()
        for step in range(NUM_STEPS):
            with seeded(step):
                images, labels, shape = self._chosen(network, step)
            kept = self._config().kept(NUM_IMAGES, shape)
            is_kept = len(images) == len(labels) == kept and 1 <= kept <= NUM_IMAGES
            if not is_kept or images.shape[2:] != shape[:2]:
                size = f"{shape.height} x {shape.width}"
                got = f"images {tuple(images.shape)} and {len(labels)} labels"
                yield f"`kept` says {kept} of {NUM_IMAGES} and `shape` {size}: it got {got}"

    def gradients_that_it_leaves_out_are_announced(self) -> Seen:
        """Write `leaves_gradients_out: ClassVar[bool] = True`; or set requires_grad to False."""
        if self.entry.leaves_gradients_out:
            return
        network = self._begun()
        self._run(network, range(1), seed=3)
        trained = ((name, p) for name, p in network.named_parameters() if p.requires_grad)
        if without := [name for name, parameter in trained if parameter.grad is None]:
            yield f"{named(without)} got none"

    def loss_is_a_sum_over_samples(self) -> Seen:
        """End `sum_of_losses` with `.sum()`, without `.item()` or `.detach()`: the loop divides."""
        network = self._begun()
        with seeded(0):
            images, labels, _ = self._chosen(network, 0)
            # A leaf of its own: the gradient that is asked for below is that of the loss alone.
            logits = network(images).detach().requires_grad_(True)
            total = self._loss_of(logits, labels, frac=0.5)
            halves = [
                float(self._loss_of(logits[part], labels[part], frac=0.5).detach())
                for part in (slice(0, 2), slice(2, None))
            ]
        if total.ndim or not total.isfinite() or not total.requires_grad:
            yield f"it returned {total!r}"
        whole = float(total.detach())
        # A sum in another order rounds otherwise.
        if abs(sum(halves) - whole) > 1e-3 * max(1.0, abs(whole)):
            yield f"two parts have {sum(halves):.6g}, the batch {whole:.6g}"

    def warm_up_leaves_no_trace(self) -> Seen:
        """Put back in `begin` all that steps have moved: counters, generators by `seed`."""
        cold, warm = self._changed(), self._changed()
        with without_trace(warm, device=CPU):
            self._run(warm, range(NUM_STEPS), seed=2)
        runs = [self._run(self._begun(each), range(NUM_STEPS), seed=3) for each in (cold, warm)]
        if runs[0] != runs[1]:
            yield f"the losses of a run are {runs[1]} after it, and {runs[0]} without"

    def a_saved_run_goes_on_as_it_would_have(self) -> Seen:
        """Keep what the network remembers in buffers, or in `state`, and read it in `restore`."""
        first, second = range(NUM_STEPS // 2), range(NUM_STEPS // 2, NUM_STEPS)
        network, config = self._begun(), self._config()
        self._run(network, first, seed=3)
        # Copies, as a file would hold: `state_dict` gives the very tensors that later steps move.
        tensors = copy.deepcopy(network.state_dict())
        saved = copy.deepcopy(config.state(network))
        resumed = self._changed()
        config.begin(resumed, seed=0)
        resumed.load_state_dict(tensors)
        config.restore(resumed, saved)
        losses = [self._run(one, second, seed=4) for one in (network, resumed)]
        if losses[0] != losses[1]:
            yield f"its losses are {losses[1]} instead of {losses[0]}"

    def random_numbers_are_left_alone(self) -> Seen:
        """Draw from a torch.Generator, seeded in `begin`, or within torch.random.fork_rng."""
        network, changed, config = self._accepted(), self._changed(), self._config()
        calls: dict[str, Callable[[], object]] = {
            "check_model": lambda: config.check_model(network),
            "begin": lambda: config.begin(changed, seed=0),
            "begin_step": lambda: config.begin_step(changed, config.shape(self._whole, frac=0.0)),
        }
        if drawing := [name for name, call in calls.items() if draws(call)]:
            yield f"{named(drawing)} drew or seeded torch's"

    def evaluation_gives_a_logit_a_class(self) -> Seen:
        """Look at `predict` and `averager`: evaluation has finite logits (images, classes)."""
        network, config = self._begun(), self._config()
        averager = config.averager(network)
        if averager is not None:
            averager.update(network, frac=1.0)
            network = averager.model
        network.eval()
        with torch.no_grad():
            images, _ = self._batch(0)
            given = config.predict(network, images)
            logits = network(images) if given is None else given
        is_finite, shape = bool(logits.isfinite().all()), tuple(logits.shape)
        if not is_finite or shape != (NUM_IMAGES, NUM_CLASSES):
            yield f"they have the shape {shape}{'' if is_finite else ', and some are not finite'}"


def _descend(network: nn.Module, losses: Iterator[Tensor]) -> list[float]:
    """Takes a step on each loss, computed by the network of then; returns the losses."""
    optimizer, taken = torch.optim.SGD(network.parameters(), lr=0.01), list[float]()
    for loss in losses:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        taken.append(float(loss.detach()))
    return taken


def _apart(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[str]:
    return [n for n, was in first.items() if n not in second or not torch.equal(was, second[n])]

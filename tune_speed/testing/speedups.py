"""What holds for every speed-up.

A few steps of a training on a small network go through all that a speed-up may change. The training
loop makes the same calls, in the same order, with whole recipes.
"""

import copy
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.cifar import PlainCNN, ResNet, ResNet20
from tune_speed.components.speedups.base import Shape, SpeedupConfig, Start
from tune_speed.core.errors import ConfigError
from tune_speed.testing.entry import ConfigContracts, ContractError, seeded
from tune_speed.training.preparation import without_trace

CPU = torch.device("cpu")
NUM_CLASSES = 10
NUM_IMAGES = 8
# Of the whole run.
NUM_STEPS = 4
# A speed-up is checked with the first that it accepts: few shortcuts, many, or none and dropout.
MODELS: tuple[ModelConfig, ...] = (
    ResNet(depth=8),
    ResNet20(),
    PlainCNN(width=8, batch_norm=True),
)


class SpeedupContracts(ConfigContracts[SpeedupConfig]):
    """What holds for every speed-up."""

    table = "SPEEDUPS"

    @property
    def _whole(self) -> Shape:
        """The shape of a step on images as they are."""
        return Shape(self.image_size, self.image_size)

    def _accepted(self) -> nn.Module:
        """Returns the entry's network, or the first small one that it accepts, not yet changed."""
        config, refusals = self._config(), list[str]()
        models = (self.model,) if self.model else MODELS
        for model in models:
            with seeded(0):
                sizes = {"num_classes": NUM_CLASSES, "image_size": self.image_size}
                network = model.build(in_channels=3, **sizes)
                try:
                    config.check_model(network)
                except ConfigError as refusal:
                    refusals.append(str(refusal))
                else:
                    return network
        raise ContractError(
            f"{self._label}: `check_model` must accept a network for {NUM_CLASSES} classes, here"
            f" {' or '.join(map(repr, models))}, but it said: {' '.join(refusals)} Give the"
            " contracts a `model` that it accepts, or `fields` with which it does."
        )

    def _changed(self) -> nn.Module:
        network = self._accepted()
        claim = "`change_model` must return the network that is trained"
        fix = "It is called as `def change_model(self, model, *, num_classes, seed)`."
        with self._working(claim, fix=fix, seed=0):
            return self._config().change_model(network, num_classes=NUM_CLASSES, seed=0)

    def _begin(self, network: nn.Module) -> None:
        config = self._config()
        config.read_data()
        calls = "`def begin(self, model, *, seed)` and `def init_weights(self, model, start)`"
        fix = f"They are called as {calls}."
        with self._working("`begin` and `init_weights` must work", fix=fix, seed=2):
            config.begin(network, seed=0)
            config.begin_step(network, config.shape(self._whole, frac=0.0))
            config.init_weights(network, self._start())

    def _begun(self) -> nn.Module:
        network = self._changed()
        self._begin(network)
        return network

    def _batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Returns images (N, C, H, W) and their labels (N,)."""
        generator = torch.Generator().manual_seed(number)
        images = torch.randn(NUM_IMAGES, 3, *self._whole[:2], generator=generator)
        return images, torch.arange(NUM_IMAGES) % NUM_CLASSES

    def _start(self) -> Start:
        """Returns what weights may be derived from: four batches, and plain steps of SGD."""

        def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
            yield from (self._batch(number) for number in range(4))

        def fit(fitted: nn.Module, data: Iterator[tuple[Tensor, Tensor]], num_steps: int) -> None:
            optimizer = torch.optim.SGD(fitted.parameters(), lr=0.01)
            for images, labels in islice(data, num_steps):
                optimizer.zero_grad()
                # In training mode a changed network may have more outputs than classes.
                functional.cross_entropy(fitted(images)[:, :NUM_CLASSES], labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

        sizes = (4 * NUM_IMAGES, NUM_CLASSES, NUM_IMAGES)
        return Start(batches, lambda share, passes: batches(0), *sizes, CPU, 0, fit)

    def _run(self, network: nn.Module, steps: range, *, seed: int) -> list[float]:
        optimizer, run_losses = torch.optim.SGD(network.parameters(), lr=0.01), list[float]()
        fix = "Look at the error below."
        with self._working("its part of a step must work", fix=fix, seed=seed):
            for step in steps:
                images, labels, _ = self._chosen(network, step)
                logits, frac = network(images), (step + 1) / NUM_STEPS
                loss = self._loss_of(logits, labels, frac=frac) / len(labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                run_losses.append(float(loss.detach()))
        return run_losses

    def _chosen(self, network: nn.Module, step: int) -> tuple[Tensor, Tensor, Shape]:
        """Returns the images and labels that a step learns from, and its shape."""
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

    def conflicts_are_named(self) -> None:
        """Each with its reason, which a refusal says."""
        conflicts = self.entry.conflicts
        self._require(
            self.name not in conflicts and all(reason.strip() for reason in conflicts.values()),
            "`conflicts` must give a reason for each other technique",
            f"it has {dict(conflicts)}",
            'Write `{"other": "each changes the final layer."}`, without its own name.',
        )

    def growth_covers_the_run_and_it_ends_with_whole_images(self) -> None:
        """The shares of the stages add up to 1; the last steps see all of each image."""
        config = self._config()
        stages = config.growth()
        self._require(
            # Shares such as thirds add up to 1 but for rounding.
            abs(sum(share for share, _ in stages) - 1) < 1e-6
            and all(factor >= 1 and factor == int(factor) for _, factor in stages),
            "`growth` must give (share, factor) with shares that add up to 1 and whole factors",
            seen=f"it gave {stages}",
            fix="((1.0, 1),) is a run without stages.",
        )
        # Not 1: a step has the share of the run at its beginning, which is below 1.
        last = config.shape(self._whole, frac=0.999)
        self._require(
            last[:2] == self._whole[:2] and last.kept_frac == 1,
            "the run must end with whole images and all samples of a batch",
            seen=f"its end has {last}",
            fix="Return the shape that is given near `frac` 1.",
        )

    def shape_is_a_pure_function(self) -> None:
        """It is called for each step beforehand, so that each shape can be warmed up and timed."""
        config = self._config()
        fracs = [k / 20 for k in range(20)]
        first = [config.shape(self._whole, frac=frac) for frac in fracs]
        # Backwards, so that a shape that depends on earlier calls differs.
        again = [config.shape(self._whole, frac=frac) for frac in reversed(fracs)][::-1]
        apart = [pair for pair in zip(first, again, strict=True) if pair[0] != pair[1]]
        claim = "`shape` must give the same for the same `frac`"
        fix = "Compute from `frac` and the fields alone."
        self._require(not apart, claim, seen=f"it gave {apart[:1]}", fix=fix)

    def check_model_leaves_network_and_random_numbers_alone(self) -> None:
        """It reads the network only."""
        network = self._accepted()
        weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        fix = "Draw within torch.random.fork_rng(devices=[])."
        with self._drawing_nothing("check_model", fix=fix):
            self._config().check_model(network)
        now = network.state_dict()
        moved = [n for n, was in weights.items() if n not in now or not torch.equal(now[n], was)]
        self._require(
            not moved and network.training,
            "`check_model` must leave the network as it is, in training mode",
            seen=f"it changed {', '.join(moved[:3]) or 'its mode'}",
            fix="Change the network in `change_model`.",
        )

    def the_changed_network_follows_from_the_seed(self) -> None:
        """Layers that it adds begin alike for the same torch seed."""
        first, again = self._changed().state_dict(), self._changed().state_dict()
        apart = [name for name in first if not torch.equal(first[name], again[name])]
        self._require(
            not apart,
            "`change_model` must make the same network for the same torch seed",
            seen=f"{', '.join(f'`{name}`' for name in apart[:3])} differ",
            fix="Draw new weights by torch, not by numpy or random, and keep nothing in the class.",
        )

    def a_step_learns_from_as_many_samples_as_it_says(self) -> None:
        """And from images of the height and width of its shape."""
        network = self._begun()
        for step in range(NUM_STEPS):
            with self._working("a batch must be changed", fix="See the error.", seed=step):
                images, labels, shape = self._chosen(network, step)
            num_chosen = self._config().kept(NUM_IMAGES, shape)
            seen = f"it got images {tuple(images.shape)} and {len(labels)} labels"
            self._require(
                len(images) == len(labels) == num_chosen and 1 <= num_chosen <= NUM_IMAGES,
                f"`choose` must return the {num_chosen} of {NUM_IMAGES} samples that `kept` says",
                seen=seen,
                fix="Let both count alike, at least 1.",
            )
            self._require(
                tuple(images.shape[2:]) == shape[:2],
                f"`change_batch` must return images of {shape.height} x {shape.width}, its `shape`",
                seen,
                "Resize to `shape.height` and `shape.width`.",
            )

    def gradients_that_it_leaves_out_are_announced(self) -> None:
        """Processes that train together would wait for them."""
        if self.entry.leaves_gradients_out:
            return
        network = self._begun()
        self._run(network, range(1), seed=3)
        trained = ((name, p) for name, p in network.named_parameters() if p.requires_grad)
        without = [name for name, parameter in trained if parameter.grad is None]
        self._require(
            not without,
            "each trained weight must get a gradient where `leaves_gradients_out` is False",
            seen=f"{', '.join(f'`{name}`' for name in without[:3])} got none",
            fix="Write `leaves_gradients_out: ClassVar[bool] = True` into the class, or set"
            " requires_grad to False for weights that are not trained.",
        )

    def loss_is_a_sum_over_samples(self) -> None:
        """Micro-batches add up to the batch, and gradients flow."""
        network = self._begun()
        with self._working("the loss must be computed", fix="See the error.", seed=0):
            images, labels, _ = self._chosen(network, 0)
            # A leaf of its own: the gradient that is asked for below is that of the loss alone.
            logits = network(images).detach().requires_grad_(True)
            total = self._loss_of(logits, labels, frac=0.5)
            halves = [
                self._loss_of(logits[part], labels[part], frac=0.5)
                for part in (slice(0, 2), slice(2, None))
            ]
        self._require(
            total.ndim == 0 and bool(total.isfinite()) and total.requires_grad,
            "`sum_of_losses` must return one finite number with a gradient",
            seen=f"it returned {total!r}",
            fix="End with `.sum()`, without `.item()` or `.detach()`.",
        )
        parts = float(sum(half.detach() for half in halves))
        whole_loss = float(total.detach())
        self._require(
            # A sum in another order rounds otherwise.
            abs(parts - whole_loss) <= 1e-3 * max(1.0, abs(whole_loss)),
            "the losses of two parts of a batch must add up to that of the batch",
            seen=f"they are {parts:.6g} and {whole_loss:.6g}",
            fix="Return the sum over samples, not their mean; the loop divides.",
        )

    def warm_up_leaves_no_trace(self) -> None:
        """Steps on dummy data and timed steps come first; weights and buffers are then restored."""
        cold, warm = self._changed(), self._changed()
        with without_trace(warm, device=CPU):
            self._run(warm, range(NUM_STEPS), seed=2)
        losses = []
        for network in (cold, warm):
            self._begin(network)
            losses.append(self._run(network, range(NUM_STEPS), seed=3))
        self._require(
            losses[0] == losses[1],
            "a run must be the same whether or not steps of warm-up came before it",
            seen=f"its losses are {losses[1]} after them, and {losses[0]} without",
            fix="Put back in `begin` all that steps have moved: counters, generators by `seed`.",
        )

    def a_saved_run_goes_on_as_it_would_have(self) -> None:
        """`state` has what the changed network remembers beyond its tensors."""
        first, second = range(NUM_STEPS // 2), range(NUM_STEPS // 2, NUM_STEPS)
        network, config = self._begun(), self._config()
        self._run(network, first, seed=3)
        # Copies, as a file would hold: `state_dict` gives the very tensors that later steps move.
        tensors = copy.deepcopy(network.state_dict())
        saved = copy.deepcopy(config.state(network))
        resumed = self._changed()
        config.begin(resumed, seed=0)
        with self._working("what `state` returned must be restored", fix="Read it in `restore`."):
            resumed.load_state_dict(tensors)
            config.restore(resumed, saved)
        losses = [self._run(one, second, seed=4) for one in (network, resumed)]
        self._require(
            losses[0] == losses[1],
            "a run that is resumed must take the steps that it would have taken",
            seen=f"its losses are {losses[1]} instead of {losses[0]}",
            fix="Return what the network remembers beyond tensors from `state`, and take it over in"
            " `restore`; or keep it in buffers.",
        )

    def random_numbers_are_given_back(self) -> None:
        """`begin` and `shape` come between what others draw."""
        network, config = self._changed(), self._config()
        fix = "Draw from a torch.Generator of your own, seeded in `begin`."
        with self._drawing_nothing("begin` and `begin_step", fix=fix):
            config.begin(network, seed=0)
            config.begin_step(network, config.shape(self._whole, frac=0.0))

    def evaluation_gives_a_logit_a_class(self) -> None:
        """By the averaged weights where there are some."""
        network, config = self._begun(), self._config()
        averager = config.averager(network)
        if averager is not None:
            averager.update(network, frac=1.0)
            network = averager.model
        network.eval()
        fix = "Look at `predict` and `averager`."
        with torch.no_grad(), self._working("evaluation must work", fix=fix):
            images, _ = self._batch(0)
            given = config.predict(network, images)
            logits = network(images) if given is None else given
        is_finite, shape = bool(logits.isfinite().all()), tuple(logits.shape)
        claim = f"evaluation must give finite logits ({NUM_IMAGES}, {NUM_CLASSES})"
        seen = f"they have the shape {shape}" if is_finite else "some are not finite"
        fix = "In evaluation mode the changed network has one logit a class."
        self._require(is_finite and shape == (NUM_IMAGES, NUM_CLASSES), claim, seen, fix)

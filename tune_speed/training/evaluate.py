"""Loss, accuracy, macro and micro F1 of a model on a split."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.components.metrics import METRICS
from tune_speed.components.metrics.base import OfLogits
from tune_speed.components.speedups.base import Averager
from tune_speed.components.speedups.modules.losses import losses_of
from tune_speed.data.augmentation.mix import as_targets
from tune_speed.data.base import Images
from tune_speed.data.loaders.configs import Resident
from tune_speed.data.loaders.resident import HeldImages, eval_batches, hold
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.device import is_out_of_memory, release_memory
from tune_speed.training.build import Job, Part, view_of
from tune_speed.training.step.step import AUTOCAST_DTYPES


class Scores(NamedTuple):
    """What one evaluation measures."""

    accuracy: float
    """Share of images whose class, or whose whole set of several classes, is predicted."""
    macro_f1: float
    """Mean F1 score of the classes that are among the labels or the predictions, in [0, 1]."""
    loss: float | None
    """Mean cross-entropy per sample [nat], without label smoothing; None if not finite. Of several
    labels an image it is the sum of the classes' binary ones."""
    micro_f1: float | None = None
    """F1 score of all classes' counts together, in [0, 1]; of one label an image, the accuracy."""
    value: float | None = None


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    device: torch.device,
    autocast_dtype: torch.dtype | None,
    predict: Callable[[nn.Module, Tensor], Tensor] = lambda model, images: model(images),
    of_logits: OfLogits | None = None,
) -> Scores:
    """Returns the scores of `model` in evaluation mode over `batches` of images and labels.

    The host waits for the device once, at the end. Training mode is restored. `predict` makes
    logits (N, K) of the model and images; `of_logits` gets the logits and labels of all images.
    """
    was_training = model.training
    model.eval()
    autocast = torch.autocast(device.type, autocast_dtype, enabled=autocast_dtype is not None)
    per_batch: list[Tensor] = []
    kept: list[tuple[Tensor, Tensor]] = []
    try:
        with torch.inference_mode(), autocast:
            for images, labels in batches:
                logits = predict(model, images)
                per_batch.append(_sums(logits, labels))
                if of_logits is not None:
                    kept.append((logits.float(), labels))
    finally:
        model.train(was_training)
    scores = _scores(torch.stack(per_batch).sum(dim=0).tolist())
    if of_logits is None:
        return scores
    with torch.inference_mode():
        value = of_logits(*(torch.cat(parts) for parts in zip(*kept, strict=True)))
    return scores._replace(value=float(value))


def _sums(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns (3 K + 3,), fp64, of labels (N,) or several an image, (N, K).

    Hits, labels and predictions of each class; images that are right, images, and their loss.
    """
    are_several = labels.ndim == 2
    num_classes = logits.shape[1]
    guess = logits if are_several else as_targets(logits.argmax(dim=1), num_classes)
    predicted, true = guess > 0, as_targets(labels, num_classes) > 0
    # Counts in float64 are exact, in whatever order a device adds them up.
    is_right = (predicted == true).all(dim=1).sum().double()
    if are_several:
        loss = losses_of(logits.float(), labels, are_several=True).sum()
    else:
        loss = functional.cross_entropy(logits.float(), labels, reduction="sum")
    by_class = [
        counted.sum(dim=0, dtype=torch.float64) for counted in (predicted & true, true, predicted)
    ]
    num_images = is_right.new_full((), len(labels))
    return torch.cat([*by_class, torch.stack([is_right, num_images, loss.double()])])


def _scores(sums: list[float]) -> Scores:
    """Returns accuracy, F1 = 2 hits / (labels + predictions) both ways, and the mean loss."""
    *by_class, right, num_images, loss = sums
    num_classes = len(by_class) // 3
    hits, labels, predictions = (by_class[i * num_classes :][:num_classes] for i in range(3))
    f1_scores = [
        2 * h / (n + p) for h, n, p in zip(hits, labels, predictions, strict=True) if n + p
    ]
    mean_loss, num_labels = loss / num_images, sum(labels) + sum(predictions)
    return Scores(
        accuracy=right / num_images,
        macro_f1=sum(f1_scores) / len(f1_scores) if f1_scores else 0.0,
        loss=mean_loss if math.isfinite(mean_loss) else None,
        micro_f1=2 * sum(hits) / num_labels if num_labels else 0.0,
    )


class Evaluator:
    """Scores a run's model, or the average of its weights where there is one."""

    def __init__(self, job: Job, model: nn.Module, clock: Clock) -> None:
        self._job, self._model, self._clock = job, model, clock
        self.averager: Averager | None = None
        num_validation = len(job.splits.validation.labels)
        self.batch_size = min(job.workload.eval_batch_size, num_validation)
        """Smaller once memory ran out with it."""
        self._held = dict[Part, HeldImages]()

    @property
    def model(self) -> nn.Module:
        return self._model if self.averager is None else self.averager.model

    def scores(self, part: Part) -> Scores:
        """Returns the model's scores; in smaller batches, from now on, where memory runs out."""
        while True:
            try:
                return self._scores(part)
            except Exception as error:
                if not is_out_of_memory(error) or self.batch_size == 1:
                    raise
            # Outside the handler: its traceback would keep the batch's tensors alive.
            release_memory(self._job.device)
            self.batch_size = math.ceil(self.batch_size / 2)

    def _scores(self, part: Part) -> Scores:
        recipe = self._job.recipe
        # Of accuracy, F1 and loss every evaluation has values by itself.
        metric = METRICS.get(self._job.workload.target.metric)
        return evaluate(
            self.model,
            self._batches(part),
            device=self._job.device,
            autocast_dtype=AUTOCAST_DTYPES[recipe.precision],
            predict=recipe.speedups.predict,
            of_logits=None if metric is None else metric.of_logits,
        )

    def _batches(self, part: Part) -> Iterator[tuple[Tensor, Tensor]]:
        splits, recipe, device = self._job.splits, self._job.recipe, self._job.device
        images: Images | HeldImages
        images = splits.validation if part == "validation" else splits.test
        # Where the training part is on the device, this one is too from its first evaluation on.
        if isinstance(recipe.loader, Resident):
            if part not in self._held:
                self._held[part] = hold(images, device)
            images = self._held[part]
        batches = eval_batches(
            images, view_of(recipe, splits), batch_size=self.batch_size, device=device
        )
        for batch in batches:
            self._clock.let_others_measure()
            yield batch

"""What every metric states of itself, and the figures of one run; None where its record lacks them.

With hits h_c, labels n_c and predictions p_c of class c, accuracy is Σ h_c / Σ n_c, F1 of a class
2 h_c / (n_c + p_c). Macro F1 is the mean over classes, micro F1 2 Σ h_c / Σ (n_c + p_c): where each
sample has one label and one prediction it is the accuracy. Where an image may be of several
classes, those with a sigmoid above 1/2 are predicted, and accuracy is the share of images of which
the whole set is right (scikit-learn's accuracy_score calls it subset accuracy).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.records import Evaluation, RunResult
from tune_speed.data.augmentation.mix import as_targets
from tune_speed.data.base import class_counts

OfLogits = Callable[[Any, Any], float]
"""From all logits (N, K) and labels, (N,) or several (N, K), of the part to a metric."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A figure that `tune-speed list metrics` names, and `tune-speed show` where a run has it."""

    about: str
    """One line: what it is and, where it is not of a run, what shows it."""
    unit: str
    """`1` for a ratio or share."""
    source: str
    of_run: Callable[[RunResult], float | None] | None = None
    """Returns it for a run; None where the record lacks it. No function: not of a single run."""
    of_logits: OfLogits | None = None
    """Returns it for all logits (N, K), float32, and labels of the part that is evaluated, both on
    the run's device: classes (N,), or 1 for each of an image's several classes, (N, K). With this
    function the metric may be a workload's target."""


# Accuracy that counts as a rise; S1 says `significantly`, without a figure.
LEAST_RISE = 0.005
# Epochs in which it may come.
FURTHER_EPOCHS = 5.0


class Point(NamedTuple):
    """One evaluation."""

    epoch: float
    accuracy: float


def epochs_to_convergence(
    curve: Sequence[Point],
    *,
    least_rise: float = LEAST_RISE,
    further_epochs: float = FURTHER_EPOCHS,
) -> float | None:
    """Returns the first epoch after which accuracy rises by less than `least_rise`, in (0, 1].

    Within `further_epochs` more; None: the run, by ascending epoch, did not last until then.

    Source: S1, section 4 (epochs until accuracy "did not significantly improve").
    """
    for point in curve:
        horizon = point.epoch + further_epochs
        if curve[-1].epoch < horizon:
            return None
        later = [p.accuracy for p in curve if point.epoch < p.epoch <= horizon]
        if later and max(later) < point.accuracy + least_rise:
            return point.epoch
    return None


def epochs_of_run(run: RunResult) -> float | None:
    """Returns the epochs to convergence of a run, by the defaults; None without an accuracy."""
    return epochs_to_convergence(
        [Point(e.epoch, e.accuracy) for e in run.evaluations if e.accuracy is not None]
    )


def top5_accuracy(logits: Any, labels: Any) -> float:
    """Returns the share of samples with a label among the five largest logits (N, K)."""
    largest = logits.topk(min(5, logits.shape[1]), dim=1).indices
    found = largest == labels[:, None] if labels.ndim == 1 else labels.gather(1, largest) > 0
    return float(found.any(dim=1).double().mean())


def average_precision(logits: Any, labels: Any) -> float:
    """Returns the mean over classes of AP = Σ_n (R_n − R_(n−1)) P_n, in [0, 1].

    P_n and R_n are precision and recall of a class where its n highest scores, and those equal to
    the last of them, count as found. Scores are logits, or, where an image has one label, their
    softmax. Classes without an image are left out, where scikit-learn counts 0.

    Source: scikit-learn, average_precision_score(average="macro").
    """
    # As for the softmax of one label: ties that rounding makes would count.
    scores = logits.double() if labels.ndim == 2 else logits.double().softmax(dim=1)
    precisions = [
        _average_precision(scores[:, number], truth)
        for number, truth in enumerate(as_targets(labels, logits.shape[1]).unbind(dim=1))
        if truth.any()
    ]
    return float(sum(precisions) / len(precisions))


def _average_precision(scores: Any, truth: Any) -> Any:
    ranked = scores.sort(descending=True)
    is_of = truth[ranked.indices].double()
    _, lengths = ranked.values.unique_consecutive(return_counts=True)
    # How many images come up to the last of those with the same score.
    ends = lengths.cumsum(0).repeat_interleave(lengths)
    precisions = is_of.cumsum(0)[ends - 1] / ends
    return (is_of * precisions).sum() / is_of.sum()


def balanced_accuracy(logits: Any, labels: Any) -> float:
    """Returns the mean recall of the classes that have images, in [0, 1].

    Of several labels an image it is the mean over classes of (recall + specificity) / 2, of those
    that some images have and others have not.

    Source: scikit-learn, balanced_accuracy_score, which takes one label an image.
    """
    truths = as_targets(labels, logits.shape[1]) > 0
    if labels.ndim == 1:
        counts = truths.sum(dim=0)
        hits = (truths & (logits.argmax(dim=1) == labels)[:, None]).sum(dim=0)
        return float((hits[counts > 0].double() / counts[counts > 0]).mean())
    found, counts = logits > 0, truths.sum(dim=0).double()
    recalls = (truths & found).sum(dim=0) / counts
    specificities = (~truths & ~found).sum(dim=0) / (len(labels) - counts)
    halves = (recalls + specificities) / 2
    return float(halves[halves.isfinite()].mean())


def guesses(labels: NDArray[Any], num_classes: int) -> dict[str, float]:
    """Returns what metrics are at the best constant guess, by the labels (N,) or (N, K).

    That is the most frequent class, or set of classes; for F1 and average precision of several
    labels, all classes. Where a metric is the same for every guess, it is that.
    """
    shares = class_counts(labels, num_classes) / len(labels)
    present = shares[shares > 0]
    precision = float(present.mean())
    if labels.ndim == 1:
        most = float(shares.max())
        f1 = {"micro_f1": most, "macro_f1": 2 * most / (1 + most) / num_classes}
        balanced = 1 / len(present)
    else:
        sets = np.unique(labels, axis=0, return_counts=True)[1]
        most, balanced = float(sets.max() / len(labels)), 0.5
        micro = float(2 * shares.sum() / (num_classes + shares.sum()))
        f1 = {"micro_f1": micro, "macro_f1": float((2 * shares / (1 + shares)).mean())}
    more = {"balanced_accuracy": balanced, "average_precision": precision}
    return {"accuracy": most, **f1, **more}


def epoch_s(run: RunResult) -> float | None:
    """Returns the training clock over the passes done, which need not be whole [s]."""
    epochs = run.final.epoch if run.final else 0.0
    return run.clocks.train_s / epochs if epochs else None


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def peak_memory_frac(run: RunResult) -> float | None:
    """Returns the peak as a share of the run's limit; above 1 where nothing enforces the limit."""
    return _share(run.peak_memory_gib, run.memory_limit_gib)


def _final(read: Callable[[Evaluation], float | None]) -> Callable[[RunResult], float | None]:
    return lambda run: None if run.final is None else read(run.final)


OF_LOGITS: Mapping[str, OfLogits] = {
    "top5_accuracy": top5_accuracy,
    "average_precision": average_precision,
    "balanced_accuracy": balanced_accuracy,
}
OF_RUN: Mapping[str, Callable[[RunResult], float | None]] = {
    **{name: _final(attrgetter(name)) for name in ("accuracy", "macro_f1", "micro_f1")},
    **{name: _final(methodcaller("value", name)) for name in OF_LOGITS},
    **{name: _final(attrgetter(name)) for name in ("loss", "train_loss")},
    "execution_s": lambda run: run.clocks.wall_s or None,
    "train_s": lambda run: run.clocks.train_s or None,
    "time_to_target_s": lambda run: run.time_to_target_s,
    "amortised_time_to_target_s": lambda run: (
        run.amortised_time_to_target_s if run.init_s else None
    ),
    "epoch_s": epoch_s,
    "epochs_to_convergence": epochs_of_run,
    "images_per_s": lambda run: run.images_per_s,
    "flop_per_s": lambda run: run.flop_per_s,
    "gpu_utilisation": lambda run: run.gpu_utilisation,
    "fed_ratio": lambda run: run.fed_ratio,
    "peak_memory_gib": lambda run: run.peak_memory_gib,
    "device_memory_gib": lambda run: run.device_memory_gib,
    "peak_memory_frac": peak_memory_frac,
    "device_memory_frac": lambda run: _share(run.device_memory_gib, run.gpu_memory_gib),
}


def speed_up(base_s: float, variant_s: float) -> float:
    """Returns S = T_base / T_variant, S0's S_mixed where only the variant is in mixed precision."""
    assert base_s > 0 and variant_s > 0, (base_s, variant_s)
    return base_s / variant_s

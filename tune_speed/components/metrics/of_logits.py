"""Metrics that need all logits of the evaluated part, and what constant guesses reach.

Labels are classes (N,), or 1 for each of an image's several classes and else 0, (N, K). Logits
(N, K) and labels are tensors of torch, which this module does not import.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tune_speed.data.augmentation.mix import as_targets
from tune_speed.data.base import class_counts


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

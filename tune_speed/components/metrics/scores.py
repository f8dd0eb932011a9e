"""Accuracy, F1, losses and their curves: what the evaluations of a run have.

| symbol | meaning                                             |
|--------|-----------------------------------------------------|
| h_c    | correct predictions of class c                      |
| n_c    | labels of class c                                   |
| p_c    | predictions of class c                              |

Accuracy is Σ h_c / Σ n_c, F1 of a class 2 h_c / (n_c + p_c). Macro F1 is the mean over classes,
micro F1 the F1 of the sums, 2 Σ h_c / Σ (n_c + p_c). Where each sample has one label and one
prediction Σ n_c = Σ p_c, so that micro F1 is the accuracy: equal columns of both say nothing twice.
"""

from typing import Any


def top5_accuracy(logits: Any, labels: Any) -> float:
    """Returns the share of samples whose label is among the five largest of its logits.

    Where there are five classes or fewer it is 1.

    Args:
        logits: (N, K), a tensor.
        labels: (N,) integers in [0, K), a tensor.
    """
    largest = logits.topk(min(5, logits.shape[1]), dim=1).indices
    return float((largest == labels[:, None]).any(dim=1).double().mean())

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

from collections.abc import Callable
from typing import Any

from tune_speed.components.metrics.base import Metric
from tune_speed.core.records import Evaluation, RunResult


def top5_accuracy(logits: Any, labels: Any) -> float:
    """Returns the share of samples whose label is among the five largest of its logits.

    Where there are five classes or fewer it is 1.

    Args:
        logits: (N, K), a tensor.
        labels: (N,) integers in [0, K), a tensor.
    """
    largest = logits.topk(min(5, logits.shape[1]), dim=1).indices
    return float((largest == labels[:, None]).any(dim=1).double().mean())


def _final(read: Callable[[Evaluation], float | None]) -> Callable[[RunResult], float | None]:
    """Returns a function that reads a run's last evaluation."""
    return lambda run: None if run.final is None else read(run.final)


SCORES = {
    "accuracy": Metric(
        about="Share of correct predictions, at the last evaluation.",
        unit="1",
        source="S0, Table I",
        of_run=_final(lambda evaluation: evaluation.accuracy),
    ),
    "macro_f1": Metric(
        about="Mean over classes of the F1 score, at the last evaluation.",
        unit="1",
        source="scikit-learn, f1_score(average='macro')",
        of_run=_final(lambda evaluation: evaluation.macro_f1),
    ),
    "micro_f1": Metric(
        about="F1 score of all classes' counts together; equals the accuracy, as each image has"
        " one label.",
        unit="1",
        source="scikit-learn, f1_score(average='micro'); S0, Table I",
        of_run=_final(lambda evaluation: evaluation.micro_f1),
    ),
    "top5_accuracy": Metric(
        about="Share of samples whose label is among the five largest logits, at the last"
        " evaluation; measured where it is the target.",
        unit="1",
        source="Russakovsky et al. 2015 (arXiv 1409.0575), section 4.1, as 1 minus the error",
        of_run=_final(lambda evaluation: evaluation.values.get("top5_accuracy")),
        of_logits=top5_accuracy,
    ),
    "loss": Metric(
        about="Mean cross-entropy per sample of the evaluated part, at the last evaluation.",
        unit="nat",
        source="S0, Table I, whose heading calls it a percentage",
        of_run=_final(lambda evaluation: evaluation.loss),
    ),
    "train_loss": Metric(
        about="Mean training loss per sample since the evaluation before the last; never divided"
        " by the accumulation steps.",
        unit="nat",
        source="S0, Table I",
        of_run=_final(lambda evaluation: evaluation.train_loss),
    ),
    "learning_curve": Metric(
        about="Losses and accuracy over epochs and over the training clock: `Results.curves`.",
        unit="nat, 1",
        source="S0, Figures 3 and 4",
    ),
}

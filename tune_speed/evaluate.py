"""Loss, accuracy and macro F1 of a model on a split."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn import functional


class Scores(NamedTuple):
    """What one evaluation measures."""

    accuracy: float
    """Share of correct predictions, in [0, 1]."""
    macro_f1: float
    """Mean over the split's classes of the F1 score, in [0, 1]."""
    loss: float | None
    """Mean cross-entropy per sample [nat], without label smoothing; None if not finite."""


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    device: torch.device,
    autocast_dtype: torch.dtype | None,
) -> Scores:
    """Returns the scores of `model` in evaluation mode over `batches` of images and labels.

    The host waits for the device once, at the end. Training mode is restored.
    """
    was_training = model.training
    model.eval()
    predictions, labels, losses = [], [], []
    autocast = torch.autocast(device.type, autocast_dtype, enabled=autocast_dtype is not None)
    with torch.inference_mode(), autocast:
        for images, batch_labels in batches:
            logits = model(images)
            losses.append(functional.cross_entropy(logits, batch_labels, reduction="sum"))
            predictions.append(logits.argmax(dim=1))
            labels.append(batch_labels)
    model.train(was_training)
    total_loss = torch.stack(losses).double().sum()
    return _scores(
        labels=torch.cat(labels).cpu().numpy(),
        predictions=torch.cat(predictions).cpu().numpy(),
        total_loss=float(total_loss),
    )


def _scores(*, labels: np.ndarray, predictions: np.ndarray, total_loss: float) -> Scores:
    mean_loss = total_loss / len(labels)
    return Scores(
        accuracy=float((labels == predictions).mean()),
        macro_f1=float(f1_score(labels, predictions, average="macro", zero_division=0)),
        loss=mean_loss if math.isfinite(mean_loss) else None,
    )

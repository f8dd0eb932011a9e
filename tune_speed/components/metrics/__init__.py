"""Every figure that the source documents report, or that is reported here.

`METRICS` says of each what it is, and computes those of one run from its record; `metrics.csv` has
the texts. Importing this package imports no torch.
"""

import csv
from importlib.resources import files

from tune_speed.components.metrics.base import OF_LOGITS, OF_RUN, Metric


def _read_table() -> dict[str, Metric]:
    text = files(__name__).joinpath("metrics.csv").read_text("utf-8")
    return {
        name: Metric(**texts, of_run=OF_RUN.get(name), of_logits=OF_LOGITS.get(name))
        for texts in csv.DictReader(text.splitlines())
        for name in [texts.pop("name")]
    }


METRICS = _read_table()

MEASURED_TARGETS = ("accuracy", "macro_f1", "micro_f1", "loss")


def target_metrics() -> tuple[str, ...]:
    """Returns the metrics that a workload's target may name, those of plugins included."""
    more = (name for name, metric in METRICS.items() if metric.of_logits is not None)
    return (*MEASURED_TARGETS, *more)

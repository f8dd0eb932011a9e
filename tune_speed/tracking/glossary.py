"""What every metric of ours in MLflow means; tags are in `reporting/README.md`. Tests check both.

`<…>` in a name stands for whatever is there. Of a certified trial, each run has its metrics under
`<name>/seed_<seed>`.
"""

from typing import NamedTuple

from tune_speed.tracking.columns import COLUMNS


class MetricAbout(NamedTuple):
    """A metric, in words."""

    unit: str
    """`1` for shares and counts."""
    when: str
    """`steps`: at each evaluation, its timestamp the run's start plus the training clock; `end`:
    once; `search`: on the parent run, over time."""
    about: str


# Columns of results that are metrics beside those with `is_metric`.
_COLUMNS = ("time_to_target_s", "final_metric", "hits", "n", "wall_s")

METRICS: dict[str, MetricAbout] = {
    "accuracy": MetricAbout("1", "steps", "share of correct predictions, in [0, 1]"),
    "macro_f1": MetricAbout("1", "steps", "mean F1 score of the classes, in [0, 1]"),
    "micro_f1": MetricAbout("1", "steps", "F1 score of all classes together, in [0, 1]"),
    "val_loss": MetricAbout("nat", "steps", "mean cross-entropy of the evaluated part"),
    "train_loss": MetricAbout("nat", "steps", "mean training loss since the evaluation before"),
    "train_s": MetricAbout(
        "s", "steps", "training clock; as the x-axis it shows curves over training seconds"
    ),
    "reached": MetricAbout("1", "end", "1 if the target was met, else 0"),
    "amortised_time_to_target_s": MetricAbout(
        "s", "end", "time to target without init_s, where there is an init_s"
    ),
    "gap": MetricAbout("1", "end", "how far the target's metric stayed off the target; 0: met"),
    "final_accuracy": MetricAbout("1", "end", "accuracy of the last evaluation"),
    "final_macro_f1": MetricAbout("1", "end", "macro F1 score of the last evaluation"),
    "final_<metric>": MetricAbout("as the metric's", "end", "final_metric, by its name"),
    "expected_s": MetricAbout(
        "s", "end", "expected time with restarts; only a trial that has a rank has it"
    ),
    "fed_ratio": MetricAbout("1", "end", "share of the time in which no step waited for data"),
    "gpu_utilisation": MetricAbout("1", "end", "share of time in which a kernel ran on the GPU"),
    "device_memory_gib": MetricAbout(
        "GiB", "end", "most memory in use on the GPU at an evaluation, co-tenants included"
    ),
    "setup_s": MetricAbout("s", "end", "data to the device, model and optimizer built"),
    "compile_s": MetricAbout("s", "end", "warm-up on dummy data, compilation included"),
    "eval_s": MetricAbout("s", "end", "scheduled evaluations"),
    "waiting_s": MetricAbout("s", "end", "standing still while somebody else measured"),
    "measuring_s": MetricAbout("s", "end", "measuring the isolated step time"),
    "init_s": MetricAbout("s", "end", "part of train_s before the first step: pretraining"),
    "shared_train_s": MetricAbout("s", "end", "seconds that passed in training, device shared"),
    **{
        name: MetricAbout(column.unit, "end", column.about)
        for name, column in COLUMNS.items()
        if column.is_metric or name in _COLUMNS
    },
    "trials": MetricAbout("1", "search", "finished trials"),
    "trials_<status>": MetricAbout("1", "search", "finished trials with that status"),
    "best_time_to_target_s": MetricAbout("s", "search", "the least time to target so far"),
}

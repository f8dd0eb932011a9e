"""What every metric and tag of ours in MLflow means. Tests hold it against what real runs carry.

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

TAGS: dict[str, str] = {
    "tune_speed.study": "name of the study, which is the experiment's",
    "tune_speed.kind": "study (experiment), search (parent run), estimate or certified (trial)",
    "tune_speed.verdict": "estimate, certified, or why a certification does not count",
    "tune_speed.search_id": "parent run: tells searches of one name apart; a resumed one keeps it",
    "tune_speed.trial_id": "number of the trial in its study",
    "tune_speed.status": "running, interrupted, or how the trial ended; capped: before its end, by"
    " the search, by the time limit or by Ctrl-C, which stop_reason tells apart",
    "tune_speed.stop_reason": "why it ended, in words",
    "tune_speed.proposal_reason": "why the search chose it, in words",
    "tune_speed.searched": "names of the parameters that were searched, separated by commas",
    "tune_speed.workload": "name of the workload",
    "tune_speed.workload_hash": "hash over workload and data",
    "tune_speed.space_hash": "hash over the search space",
    "tune_speed.protocol_version": "version of the measuring rules",
    "tune_speed.device": "name of the device",
    "tune_speed.cpu_threads": "threads of one operation",
    "tune_speed.timing": "the training clock: isolated, disturbed, exclusive or shared",
    "tune_speed.max_cotenants": "other trials that could run on the device at the same time",
    "tune_speed.started_at": "UTC, ISO 8601",
    "tune_speed.finished_at": "UTC, ISO 8601",
    "tune_speed.target": "metric and value that must be reached",
    "tune_speed.mode": "crossing mode: fixed_length or anytime",
    "tune_speed.trials": "trials that the study file asks for",
    "tune_speed.concurrent": "trials at the same time, at most",
    "tune_speed.ends_at": "when its time budget is spent; UTC, ISO 8601; empty without one",
    "tune_speed.packing": "what was measured for that number, where it was left to `auto`",
    "tune_speed.policy": "what decided on trials",
    "tune_speed.sampler": "what proposed them",
    "tune_speed.warm_start": "studies that the search learned from",
    "tune_speed.env.<name>": "version of a package, host, platform or commit",
    "tune_speed.record": "the whole record as JSON, without its curve; goes on in .1, .2",
    "tune_speed.record.<i>": "the record, continued",
    "tune_speed.board": "hash of what trials share that may be ranked together",
    "tune_speed.boards": "parent run: what its trials come to, by board, as JSON",
    "tune_speed.boards.<i>": "the same, continued",
    "tune_speed.step_times": "isolated step times that this trial measured, as JSON",
    "tune_speed.clock": "step times [s] that the training clock is made of",
    "tune_speed.updated_at": "parent run: when a trial last ended; UTC, ISO 8601",
    "tune_speed.best_trial": "parent run: the fastest trial",
    "tune_speed.recommended": "parent run: its board and its favourites, what it recommends first",
    "tune_speed.range_ends": "parent run: ranges at whose ends the best configurations lie",
    "tune_speed.model": "address of the trial's model, where `log_model: best` logged it",
    "mlflow.note.content": "the description that MLflow shows, in Markdown",
    "tune_speed.note.<trial>": "experiment: what a person noted on a trial",
    "tune_speed.star.<trial>": "experiment: yes if a person gave the trial a star",
    "mlflow.experimentKind": "experiment: trainings of models, in the words of MLflow's pages",
    "mlflow.parentRunId": "the search's run",
    "mlflow.runName": "the trial's number, or the study's name",
    "mlflow.user": "who ran the search",
    "mlflow.source.name": "tune-speed",
}

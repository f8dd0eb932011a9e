"""Records of other targets than a least accuracy: a training function's, and a greatest loss."""

from collections.abc import Mapping, Sequence
from typing import Any

from helpers.making import make_record, make_run

from tune_speed.core.records import Evaluation, Status, TrialRecord
from tune_speed.reporting.study.view import StudyPart, ViewedTrial, part_key

OWN_WORKLOAD: dict[str, Any] = {
    "name": "my_train-rmse-0.3",
    "function_hash": "f" * 16,
    "target": {"metric": "rmse", "value": 0.3, "mode": "min"},
    "mode": "fixed_length",
    "max_train_s": 60.0,
}
LOSS_WORKLOAD: dict[str, Any] = {
    "dataset": {"name": "digits"},
    "target": {"metric": "loss", "value": 0.3, "mode": "min"},
    "mode": "fixed_length",
}
TOP5_WORKLOAD: dict[str, Any] = {
    "dataset": {"name": "digits"},
    "target": {"metric": "top5_accuracy", "value": 0.9},
    "mode": "fixed_length",
}
"""As older records have it: without `mode`."""
IMAGE_RECIPE = {
    "model": {"resnet20": {}},
    "optimizer": {"sgd": {"lr": 0.3}},
    "epochs": 2.5,
    "batch_size": 64,
}


def own_record(
    trial_id: str = "t0000", *, time_s: float = 1.0, rmse: float = 0.25, **fields: Any
) -> TrialRecord:
    """Returns a trial of a training function that tells nothing but its target's metric."""
    lr = fields.pop("lr", 0.1)
    evaluations = [
        Evaluation(step=0, samples=0, epoch=0.0, train_s=0.0, values={"rmse": 2.0}),
        Evaluation(step=5, samples=0, epoch=0.0, train_s=time_s / 2, values={"rmse": 2 * rmse}),
        Evaluation(step=10, samples=0, epoch=0.0, train_s=time_s, values={"rmse": rmse}),
    ]
    # What nobody told: samples, and so their rate and the micro-batch.
    told = {"samples": 0, "images_per_s": None, "batch_size": None, "accumulation_steps": None}
    tree = {"lr": lr, "net": {"depth": 4}}
    return _record(
        trial_id,
        rmse <= 0.3,
        evaluations,
        time_s=time_s,
        workload=OWN_WORKLOAD,
        name="my_train-rmse-0.3",
        run=told,
        **{"params": {"lr": lr}, "recipe": {"params": tree}, "study": "own", **fields},
    )


def loss_record(
    trial_id: str = "t0000", *, time_s: float = 1.0, loss: float | None = 0.25, **fields: Any
) -> TrialRecord:
    """Returns a trial on images whose loss must fall to 0.3."""
    losses = (None if loss is None else 2 * loss, loss)
    evaluations = [
        _scored(step=5 * i, train_s=i * time_s / 2, loss=value) for i, value in enumerate(losses, 1)
    ]
    met, study = loss is not None and loss <= 0.3, {"study": "loss"}
    fields = {"workload": LOSS_WORKLOAD, **study, **fields}
    return _record(trial_id, met, evaluations, time_s=time_s, name="digits-loss-0.3", **fields)


def top5_record(
    trial_id: str = "t0000", *, time_s: float = 1.0, top5: float = 0.95, **fields: Any
) -> TrialRecord:
    """Returns a trial on images of which a label is to be among the five likeliest."""
    shares = (0.5, top5)
    evaluations = [
        _scored(step=5 * i, train_s=i * time_s / 2, loss=1.0, values={"top5_accuracy": value})
        for i, value in enumerate(shares, 1)
    ]
    fields = {"workload": TOP5_WORKLOAD, "study": "top5", **fields}
    name = "digits-top5_accuracy-0.9"
    return _record(trial_id, top5 >= 0.9, evaluations, time_s=time_s, name=name, **fields)


def part_of(
    trials: Sequence[TrialRecord], certified: Sequence[TrialRecord] = (), *, has_curve: bool = True
) -> StudyPart:
    """Returns these records as the part of a study that figures and pages are made of."""
    estimates, others = (
        tuple(
            ViewedTrial(record=r, run_id=f"{r.kind}-{r.trial_id}", url=None, has_curve=has_curve)
            for r in group
        )
        for group in (trials, certified)
    )
    return StudyPart(key=part_key(trials[0]), trials=estimates, certified=others)


def _scored(
    *, step: int, train_s: float, loss: float | None, values: Mapping[str, float] | None = None
) -> Evaluation:
    return Evaluation(
        step=step,
        samples=32 * step,
        epoch=step / 10,
        train_s=train_s,
        accuracy=0.5,
        macro_f1=0.4,
        loss=loss,
        values=dict(values or {}),
    )


def _record(
    trial_id: str,
    is_hit: bool,
    evaluations: Sequence[Evaluation],
    *,
    time_s: float,
    name: str,
    run: Mapping[str, Any] | None = None,
    **fields: Any,
) -> TrialRecord:
    status = Status.REACHED if is_hit else Status.MISSED
    made = make_run(status, time_s=time_s, seed=fields.pop("seed", 0))
    made = made.model_copy(update={"evaluations": tuple(evaluations), **(run or {})})
    record = make_record(trial_id, status, runs=(made,))
    changes = {"recipe": IMAGE_RECIPE, "workload_name": name, "workload_hash": f"{name:x<16}"[:16]}
    return record.model_copy(update={**changes, **fields})

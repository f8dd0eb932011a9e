"""Records for tests that need some without training."""

from typing import Any
from zlib import crc32

from tune_speed.core.records import Clocks, Evaluation, RunResult, Status, TrialRecord

WORKLOAD: dict[str, Any] = {
    "dataset": {"name": "digits"},
    "target": {"metric": "accuracy", "value": 0.9},
    "mode": "fixed_length",
}


def make_evaluation(*, step: int = 10, train_s: float = 1.0, accuracy: float = 0.95) -> Evaluation:
    return Evaluation(
        step=step,
        samples=step * 32,
        epoch=step / 10,
        train_s=train_s,
        accuracy=accuracy,
        macro_f1=accuracy / 2,
        loss=0.1,
    )


def make_run(
    status: Status = Status.REACHED, *, time_s: float = 1.0, accuracy: float = 0.95, seed: int = 0
) -> RunResult:
    return RunResult(
        status=status,
        seed=seed,
        stop_reason=f"ended as {status.value}",
        time_to_target_s=time_s if status == Status.REACHED else None,
        evaluations=(make_evaluation(train_s=time_s, accuracy=accuracy),),
        clocks=Clocks(train_s=time_s, wall_s=2 * time_s),
        steps=10,
        samples=320,
        images_per_s=320 / time_s,
        flop=6.4e8,
        step_time_ms=100 * time_s,
        peak_memory_gib=0.5,
        memory_limit_gib=1.0,
        batch_size=32,
        accumulation_steps=1,
        device="cpu (1 threads, test)",
        traceback="Traceback: boom" if status == Status.FAILED else None,
    )


def _lr(trial_id: str) -> float:
    """Returns 0.1 for `t0000`, and another rate for each other trial."""
    return 0.1 if trial_id == "t0000" else 0.1 + crc32(trial_id.encode("utf-8", "replace")) / 2**40


def make_record(
    trial_id: str = "t0000",
    status: Status = Status.REACHED,
    *,
    time_s: float = 1.0,
    study: str = "study",
    device: str = "cpu (1 threads, test)",
    workload_hash: str = "w" * 16,
    runs: tuple[RunResult, ...] | None = None,
    params: dict[str, Any] | None = None,
    kind: str = "estimate",
) -> TrialRecord:
    return TrialRecord(
        study=study,
        trial_id=trial_id,
        params={"optimizer.sgd.lr": _lr(trial_id)} if params is None else params,
        recipe={"model": {"resnet20": {}}, "batch_size": 32},
        workload=WORKLOAD,
        workload_name="digits",
        workload_hash=workload_hash,
        space_hash="s" * 16,
        status=status,
        runs=(make_run(status, time_s=time_s),) if runs is None else runs,
        kind=kind,
        device=device,
        environment={"torch": "2.15.0", "tune_speed": "0.1.0"},
        started_at="2026-01-01T00:00:00.000+00:00",
        finished_at="2026-01-01T00:00:09.000+00:00",
    )

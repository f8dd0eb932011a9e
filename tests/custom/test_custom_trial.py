"""Training functions from call to record, whatever they do."""

import functools
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.custom.runs import make_own_spec, make_task
from helpers.imports import imported

from tune_speed.core.records import CLOCKED, Status, Timing, TrialRecord
from tune_speed.core.targets import Target
from tune_speed.core.words import joined
from tune_speed.custom.run import OwnRun, StopTraining
from tune_speed.custom.trial import run_own_trial
from tune_speed.runtime.pooled_times import reclocked
from tune_speed.training.loop import Interrupted
from tune_speed.training.trial import Allotment, CheckpointPlan

STEP_S = 0.002


def count_up(params: dict[str, Any], run: OwnRun) -> None:
    """Gets better by 0.1 an evaluation."""
    with run.timed():
        for step in range(1, params.get("steps", 20) + 1):
            time.sleep(STEP_S)
            run.step()
            run.evaluated(step=step, metric=step / 10, epoch=step / 2, samples=32 * step)


def test_record_holds_all_that_a_leaderboard_asks_for() -> None:
    seen: list[TrialRecord] = []
    record = run_own_trial(make_own_spec(), count_up, on_report=seen.append)
    run = record.runs[0]
    assert record.status == Status.REACHED
    assert run.time_to_target_s == run.evaluations[8].train_s
    assert len(run.evaluations) == 10 and len(seen) == 10
    assert [r.runs[0].status for r in seen] == [Status.CAPPED] * 10
    assert run.clocks.train_s >= 10 * STEP_S
    assert (run.steps, run.samples) == (10, 320)
    assert run.images_per_s == pytest.approx(320 / run.clocks.train_s)
    assert run.step_time_ms == pytest.approx(100 * run.clocks.train_s)
    assert record.recipe == {"params": {"lr": 0.1}}
    assert record.workload["function"] == "my_train"
    assert record.workload_name == "my_train-accuracy-0.9"
    assert run.device.kind == "cpu"
    assert run.peak_memory_gib is not None and run.memory_limit_gib is not None
    assert record == TrialRecord.model_validate_json(record.model_dump_json())


def test_function_that_raises_has_failed_with_its_traceback() -> None:
    def raises(params: dict[str, Any], run: OwnRun) -> None:
        with run.timed():
            time.sleep(STEP_S)
            run.evaluated(step=1, metric=0.5)
            raise ZeroDivisionError("in the second epoch")

    record = run_own_trial(make_own_spec(), raises)
    run = record.runs[0]
    assert record.status == Status.FAILED
    assert "in the second epoch" in str(record.stop_reason)
    assert run.traceback is not None and "in raises" in run.traceback
    assert len(run.evaluations) == 1 and run.time_to_target_s is None


def test_function_that_runs_out_of_memory_says_so() -> None:
    def greedy(params: dict[str, Any], run: OwnRun) -> None:
        with run.timed():
            raise MemoryError("no more")

    assert run_own_trial(make_own_spec(), greedy).status == Status.OOM


def test_function_that_reports_nan_has_diverged() -> None:
    def diverges(params: dict[str, Any], run: OwnRun) -> None:
        with run.timed():
            time.sleep(STEP_S)
            run.evaluated(step=1, metric=torch.tensor(float("nan")))

    record = run_own_trial(make_own_spec(), diverges)
    assert record.status == Status.DIVERGED
    assert record.runs[0].evaluations == ()


def test_function_that_swallows_the_stop_changes_nothing() -> None:
    def goes_on(params: dict[str, Any], run: OwnRun) -> None:
        with run.timed():
            for step in range(1, 100):
                time.sleep(STEP_S)
                try:
                    run.evaluated(step=step, metric=0.95)
                except StopTraining:
                    continue

    record = run_own_trial(make_own_spec(), goes_on)
    assert record.status == Status.REACHED
    assert len(record.runs[0].evaluations) == 2


def test_interrupted_function_leaves_no_record() -> None:
    with pytest.raises(Interrupted):
        run_own_trial(make_own_spec(), count_up, interrupt=lambda: True)


def test_reported_clock_is_said_in_the_record() -> None:
    def elsewhere(params: dict[str, Any], run: OwnRun) -> None:
        for step in (1, 2):
            time.sleep(0.02)
            run.evaluated(step=step, metric=0.95, train_s=0.01 * step)

    run = run_own_trial(make_own_spec(), elsewhere).runs[0]
    assert run.time_to_target_s == 0.01 and run.clocks.train_s == 0.02
    assert "reported its own clock" in joined(run.note)


def test_seed_is_given_to_all_generators() -> None:
    drawn: list[tuple[float, float]] = []

    def draws(params: dict[str, Any], run: OwnRun) -> None:
        drawn.append((float(np.random.rand()), float(torch.rand(()))))

    for seed in (1, 1, 2):
        run_own_trial(make_own_spec(seed=seed), draws)
    assert drawn[0] == drawn[1] != drawn[2]


def test_function_may_change_its_parameters() -> None:
    spec = make_own_spec(params={"optimizer": {"sgd": {"lr": 0.1}}})

    def greedy(params: dict[str, Any], run: OwnRun) -> None:
        params["optimizer"].pop("sgd")

    run_own_trial(spec, greedy)
    assert spec.recipe.params == {"optimizer": {"sgd": {"lr": 0.1}}}


def test_certified_runs_see_the_test_part() -> None:
    seen: list[str] = []
    for part in ("validation", "test"):
        run_own_trial(make_own_spec(evaluated_on=part), lambda params, run: seen.append(run.part))
    assert seen == ["validation", "test"]


def test_trial_alone_on_its_device_has_an_exclusive_clock_or_says_who_was_there() -> None:
    run = run_own_trial(make_own_spec(), count_up).runs[0]
    assert run.timing == Timing.EXCLUSIVE or run.note


def test_trial_on_a_shared_device_is_timed_by_its_isolated_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_SPEED_TURNSTILE", str(tmp_path))

    def trains(params: dict[str, Any], run: OwnRun) -> None:
        with run.timed():
            for step in range(1, 2000):
                time.sleep(STEP_S)
                run.step()
                if step % 100 == 0:
                    run.evaluated(step=step, metric=0.95 if run.step_time else 0.1)

    spec = make_own_spec(allotment=Allotment(device="cpu", max_cotenants=1))
    record = run_own_trial(spec, trains)
    run = record.runs[0]
    assert run.timing in CLOCKED and record.status == Status.REACHED
    assert [each.key for each in run.windows] == [run.step_times[0].key] * len(run.windows)
    assert run.step_times[0].step_s >= STEP_S and run.step_times[0].reference_s is not None
    assert run.slowdown is not None and run.slowdown == run.shared_train_s / run.clocks.train_s
    assert "no step could be timed" not in joined(run.note)
    # A later look at its windows re-clocks it as it does a recipe's record.
    twice = run.step_times[0].model_copy(update={"step_s": 2 * run.step_times[0].step_s})
    again = reclocked(record, {twice.key: twice}).runs[0]
    assert again.time_to_target_s == pytest.approx(2 * run.time_to_target_s)


class Dies(BaseException):
    """Ends a process."""


def test_interrupted_trial_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    place = CheckpointPlan(place=str(tmp_path / "t0000.ckpt"), every_s=0.0)
    target = Target(metric="loss_of_mine", value=0.5, mode="min")
    spec = make_own_spec(checkpoint=place, workload=make_task(target=target, mode="fixed_length"))
    begun: list[int] = []

    def trains(params: dict[str, Any], run: OwnRun) -> None:
        state = run.restored()
        first = 1 if state is None else state["step"] + 1
        weights = torch.zeros(2) if state is None else state["weights"]
        begun.append(first)
        with run.timed():
            for step in range(first, 7):
                time.sleep(0.01)
                weights += 1
                run.evaluated(step=step, metric=1 / step)
                run.save(functools.partial(dict, step=step, weights=weights))
                if step == 3 and state is None:
                    raise Dies
        assert weights.tolist() == [6, 6]

    with pytest.raises(Dies):
        run_own_trial(spec, trains)
    record = run_own_trial(spec, trains)
    run = record.runs[0]
    assert begun == [1, 4]
    assert record.status == Status.REACHED
    assert [e.step for e in run.evaluations] == [1, 2, 3, 4, 5, 6]
    assert run.clocks.train_s >= 0.06
    clock = [e.train_s for e in run.evaluations]
    assert clock == sorted(clock)
    assert "resumed at step 3" in joined(run.note)
    assert not (tmp_path / "t0000.ckpt").exists()


def test_checkpoint_of_another_trial_is_not_gone_on_with(tmp_path: Path) -> None:
    place = CheckpointPlan(place=str(tmp_path / "t0000.ckpt"), every_s=0.0)
    found: list[Any] = []

    def saves(params: dict[str, Any], run: OwnRun) -> None:
        found.append(run.restored())
        with run.timed():
            time.sleep(STEP_S)
            run.evaluated(step=1, metric=0.1)
            run.save(lambda: {"step": 1})
            raise Dies

    for seed in (1, 2):
        with pytest.raises(Dies):
            run_own_trial(make_own_spec(seed=seed, checkpoint=place), saves)
    assert found == [None, None]


def test_state_that_cannot_be_saved_costs_no_trial(tmp_path: Path) -> None:
    place = CheckpointPlan(place=str(tmp_path / "t0000.ckpt"), every_s=0.0)

    def saves(params: dict[str, Any], run: OwnRun) -> None:
        with run.timed():
            for step in (1, 2):
                time.sleep(STEP_S)
                run.evaluated(step=step, metric=0.95)
                run.save(lambda: {"lock": threading.Lock()})

    record = run_own_trial(make_own_spec(checkpoint=place), saves)
    assert record.status == Status.REACHED
    assert "not saved at step 1" in joined(record.runs[0].note)


def test_package_imports_no_torch() -> None:
    assert imported("import tune_speed.custom", "torch") == set()

"""What is asked of drivers and kernels, in their own words, and steps that are counted exactly."""

import os
import resource
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from tune_speed.runtime import (
    cuda_context,
    device,
    git,
    heartbeat,
    mps,
    step_timer,
)
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.step_timer import Meters, isolated_time, time_steps, warm_up
from tune_speed.runtime.turnstile import Turnstile


class Program:
    """In place of `subprocess.run`: notes what is run, and answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
        self.commands: list[list[str]] = []
        self.options: dict[str, Any] = {}
        self.answer = answer
        monkeypatch.setattr(subprocess, "run", self)

    def __call__(self, command: list[str], **options: Any) -> Any:
        self.commands.append(command)
        self.options = options
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def said(stdout: str, *, code: int = 0) -> Any:
    return SimpleNamespace(stdout=stdout, stderr="", returncode=code)


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        (["python", None], False),
        (["nvidia-cuda-mps"], True),
        ([None, "nvidia-cuda-mps-server"], True),
        (["my-nvidia-cuda-mps"], False),
    ],
)
def test_mps_is_seen_by_the_name_that_the_kernel_keeps_of_it(
    monkeypatch: pytest.MonkeyPatch, names: list[str | None], runs: bool
) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    processes = [SimpleNamespace(info={"name": name}) for name in names]
    monkeypatch.setattr(psutil, "process_iter", lambda attributes: processes)
    assert mps._is_seen() is runs


def test_mps_control_program_has_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch, said("4711"))
    assert mps._answers("/bin/control")
    assert program.commands == [["/bin/control"]]
    assert (program.options["timeout"], program.options["input"]) == (5, "get_server_list\n")


def test_git_is_asked_without_its_callers_places_or_monitors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = SimpleNamespace(stdout="größer\n".encode(), returncode=0)
    program = Program(monkeypatch, answer)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX"):
        monkeypatch.setenv(name, "elsewhere")
    assert git.run_git(Path("/here"), "status") == "größer\n"
    monitor = ["-c", "core.fsmonitor=false"]
    assert program.commands == [["git", "-C", "/here", *monitor, "status"]]
    environment = program.options["env"]
    git_names = {name for name in environment if name.startswith("GIT_")}
    assert environment["GIT_OPTIONAL_LOCKS"] == "0" and "GIT_DIR" not in environment
    assert not git_names & set(git._PLACES) and program.options["timeout"] == 5
    answer.returncode = 128
    assert git.run_git(Path("/here"), "status") is None
    program.answer = subprocess.TimeoutExpired("git", 5)
    assert git.run_git(Path("/here"), "status") is None


def test_context_is_what_one_more_process_takes_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gib = 2**30
    program = Program(monkeypatch, said(str(19 * gib)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (20 * gib, 24 * gib))
    gpu = torch.device("cuda", 3)
    assert cuda_context._measured(gpu) == 1.0
    assert program.commands[0][-1] == "3" and program.options["timeout"] == 120
    # A neighbour that allocates or ends meanwhile would be part of it.
    for free_gib in (20, 21, 16, 15):
        program.answer = said(str(free_gib * gib))
        assert cuda_context._measured(gpu) is None
    program.answer = said(str(16 * gib + 1))
    assert cuda_context._measured(gpu) == pytest.approx(4)
    for program.answer in (said("nothing"), OSError("no"), subprocess.TimeoutExpired("x", 1)):
        assert cuda_context._measured(gpu) is None


@pytest.mark.parametrize(
    ("hard", "wanted", "soft"),
    [(-1, 5000, 5000), (4000, 5000, 4000), (9000, 5000, 5000), (9000, float("inf"), None)],
)
def test_limit_of_data_is_set_below_the_hard_one_only(
    monkeypatch: pytest.MonkeyPatch, hard: int, wanted: float, soft: int | None
) -> None:
    calls: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (7000, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda what, both: calls.append((what, both)))
    device._set_soft_limit(wanted)
    assert calls == ([] if soft is None else [(resource.RLIMIT_DATA, (soft, hard))])
    assert device._soft_limit() == 7000
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY, hard))
    assert device._soft_limit() == float("inf")


class Steps:
    """Steps of a quarter of a second each on a made-up clock."""

    def __init__(self, length_s: float = 0.25) -> None:
        self.seconds, self.length_s, self.taken, self.waits = 0.0, length_s, 0, 0

    def now(self) -> float:
        return self.seconds

    def take(self) -> int:
        self.seconds += self.length_s
        self.taken += 1
        return 32

    def synchronize(self) -> None:
        self.waits += 1


@pytest.mark.parametrize(
    ("limit_s", "taken"), [(0.0, 2), (0.5, 2), (0.75, 2), (0.8, 3), (1.0, 3), (1.01, 4)]
)
def test_warming_up_begins_no_step_that_would_end_past_its_limit(
    limit_s: float, taken: int
) -> None:
    steps = Steps()
    last_s = warm_up(steps.take, limit_s=limit_s, synchronize=steps.synchronize, now=steps.now)
    assert (steps.taken, steps.waits, last_s) == (taken, taken, 0.25)


def timed(steps: Steps, *, step_s: float = 0.25, period: int = 1) -> step_timer.Timed:
    return time_steps(
        step_timer.Steps(steps.take, 32, 10**6, block_s=0.01, period=period),
        Meters(synchronize=steps.synchronize, now=steps.now),
        step_s=step_s,
        limit_s=9.0,
    )


def test_timing_ends_after_a_second_however_much_time_there_is() -> None:
    steps = Steps()
    found = timed(steps)
    # After three, a fourth would end at the second itself. The device is waited for around each.
    assert found[:4] == (0.25, 0.25, 0.25, 3)
    assert steps.waits == 4


def test_block_is_one_step_unless_a_period_is_given() -> None:
    steps = Steps(0.02)
    timed(steps, step_s=0.02)
    waits = steps.waits
    by_twos = Steps(0.02)
    timed(by_twos, step_s=0.02, period=2)
    assert waits - 1 == steps.taken and 2 * (by_twos.waits - 1) == by_twos.taken


@pytest.mark.parametrize(("num_isolated", "is_timed"), [(0, True), (2, True), (3, False)])
def test_measurement_that_did_not_stay_isolated_is_repeated_twice_at_most(
    num_isolated: int, is_timed: bool
) -> None:
    turns: list[float] = []

    class Crowded:
        """A turnstile at which the first turns are disturbed."""

        longest_pause_s = 10.0

        def measuring(self, *, patience_s: float, needs_s: float) -> Any:
            turns.append(patience_s)
            is_isolated = len(turns) > num_isolated
            turn = SimpleNamespace(left_s=0.9, is_isolated=is_isolated)
            return _Block(turn)

    steps = Steps(0.01)
    clock = Clock(synchronize=steps.synchronize, now=steps.now)
    found = isolated_time(
        step_timer.Steps(steps.take, 32, 10**6, block_s=0.01),
        Meters(synchronize=steps.synchronize, now=steps.now),
        clock=clock,
        turnstile=Crowded(),  # type: ignore[arg-type]
    )
    assert (found is not None) == is_timed
    assert turns == [10.0] * min(num_isolated + 1, 3)
    clocks = clock.clocks()
    assert clocks.compile_s == pytest.approx(0.2, abs=0.011) and clocks.train_s == 0
    assert clocks.measuring_s > 0.3 * len(turns)


class _Block:
    def __init__(self, turn: Any) -> None:
        self._turn = turn

    def __enter__(self) -> Any:
        return self._turn

    def __exit__(self, *_: object) -> None:
        """Ends nothing."""


def test_look_whether_others_measure_is_a_sign_of_life() -> None:
    clock = Clock(synchronize=lambda: None)
    before = heartbeat.beats()
    with clock.span("train_s"):
        begun = heartbeat.beats()
        for _ in range(3):
            clock.let_others_measure()
        assert heartbeat.beats() == begun + 3
    assert begun >= before


def test_folder_of_a_turnstile_that_has_no_locks_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tune_speed.runtime import turnstile

    def refuse(*_: object) -> bool:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(turnstile, "try_flock", refuse)
    before = len(os.listdir("/proc/self/fd"))
    opened = Turnstile.open("device", folder=tmp_path)
    with opened as found:
        assert found.why_not is not None and "No locks available" in found.why_not
        assert len(os.listdir("/proc/self/fd")) == before

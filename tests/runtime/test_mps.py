"""Whether MPS runs, with a stand-in for its control program on the PATH."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tune_speed.runtime import mps
from tune_speed.runtime.mps import CONTROL, Mps, find_mps

RUNS = 'read -r asked; [ "$asked" = get_server_list ] && echo 4711'
NO_DAEMON = "echo 'Cannot find MPS control daemon process'"


@pytest.fixture(autouse=True)
def _no_pipes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    # Another session of these tests may run a script of that name.
    monkeypatch.setattr(mps.psutil, "process_iter", lambda fields: ())


def install(folder: Path, script: str) -> None:
    (folder / CONTROL).write_text(f"#!/bin/sh\n{script}\n")
    (folder / CONTROL).chmod(0o755)


def test_daemon_that_answers_runs(tmp_path: Path) -> None:
    install(tmp_path, RUNS)
    found = find_mps()
    assert found == Mps(runs=True, can_start=True)
    assert found.sharing == "MPS" and found.advice == ""


@pytest.mark.parametrize("script", [f"{NO_DAEMON}; exit 1", f"{NO_DAEMON} >&2; exit 0", "exit 1"])
def test_daemon_that_is_not_there_is_not_started_but_it_is_said_how(
    tmp_path: Path, script: str
) -> None:
    install(tmp_path, f'echo "$@" >> {tmp_path}/arguments; {script}')
    found = find_mps()
    assert found == Mps(runs=False, can_start=True)
    assert found.sharing == "time slicing"
    assert f"`{CONTROL} -d`" in found.advice and f"`echo quit | {CONTROL}`" in found.advice
    assert (tmp_path / "arguments").read_text() == "\n"


def test_control_program_that_hangs_counts_as_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "ANSWER_S", 0.2)
    install(tmp_path, "exec /bin/sleep 60")
    assert not find_mps().runs


def test_pipe_directory_tells_where_the_control_program_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_mps() == Mps(runs=False, can_start=False)
    assert find_mps().advice == f"no MPS here: no {CONTROL}"
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "gone"))
    assert not find_mps().runs
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert find_mps() == Mps(runs=True, can_start=False)


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
    processes = [SimpleNamespace(info={"name": name}) for name in names]
    monkeypatch.setattr(mps.psutil, "process_iter", lambda attributes: processes)
    assert mps._is_seen() is runs

"""Searches over the `faulty` model: the study, the command with its processes, and what is left."""

import fcntl
import json
import os
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from helpers.command import TUNE_SPEED, environment, exit_code, finished, here, mlflow_runs
from helpers.processes import command_of, marked

from tune_speed.components.models import MODELS
from tune_speed.tuning import precheck

FAULTY = str(Path(__file__).parent / "faulty")
MARK = "FAULTS_RUN"
"""Variable that all processes of a run inherit, whoever their parent is by now."""
STUDY = """
study: tiny
workload:
  dataset: {{name: digits}}
  target: {{metric: accuracy, value: 0.99}}
  max_train_s: 600
  split: {{validation_frac: 0.2, train_samples: 300, validation_samples: 100}}
recipe:
  model: {{faulty: {{{model}}}}}
  optimizer: {{sgd: {{lr: {{low: 0.02, high: 0.4, log: true}}}}}}
  lr_schedule: one_cycle
  epochs: {epochs}
  batch_size: 50
  loader: {loader}
search: {{trials: {trials}, sampler: random, {search}}}
"""


def write_study(
    folder: Path,
    *,
    model: str,
    trials: int,
    epochs: int = 3,
    loader: str = "resident",
    **search: Any,
) -> str:
    """Writes the study into `folder`; returns the file's name. YAML in flow style in, and out."""
    own = {"concurrent": 2, "hang_after": "120s", **search}
    settings = ", ".join(f"{name}: {value}" for name, value in own.items())
    text = STUDY.format(model=model, trials=trials, epochs=epochs, loader=loader, search=settings)
    (folder / "tiny.yaml").write_text(text)
    return "tiny.yaml"


def one_each(faults: Sequence[str], **search: Any) -> dict[str, Any]:
    """Returns what a study needs to try each fault in one trial, in this order."""
    points = ", ".join(f"{{model.faulty.fault: {fault}}}" for fault in faults)
    model = f"fault: {{choices: [{', '.join(faults)}]}}"
    points = f"[{points}]"
    return {"model": model, "trials": len(faults), "points_to_evaluate": points, **search}


def limits(values: dict[str, float]) -> dict[str, str]:
    """Returns the environment in which constants have these values [s], by `module.CONSTANT`."""
    return {"FAULTS_LIMITS": json.dumps({f"tune_speed.{name}": s for name, s in values.items()})}


class Search:
    """A `tune-speed search` that runs, in a process group of its own, and all that it started."""

    def __init__(
        self, folder: Path, *arguments: str, prefix: Sequence[str] = (), **variables: str
    ) -> None:
        self.folder, self.id = folder, uuid.uuid4().hex
        self._out, self._err = (folder / "out").open("wb+"), (folder / "err").open("wb+")
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT,HUP", *prefix, TUNE_SPEED, "search", *arguments],
            cwd=folder,
            env={**environment(folder), **_faulty_variables(folder, self.id), **variables},
            stdin=subprocess.DEVNULL,
            stdout=self._out,  # Not a pipe: what survives the command would hold it open.
            stderr=self._err,
            start_new_session=True,
        )

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    def wait(self, *, within_s: float) -> int:
        """Returns the exit code. Raises: AssertionError with what it printed if that takes long."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {within_s:g} s:\n{self.out}{self.err}") from None

    def wait_until(self, condition: Callable[[], object], *, within_s: float = 240) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert self.process.poll() is None, self.out + self.err
            assert time.monotonic() < deadline, f"never came:\n{self.out}{self.err}"
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        """Returns all processes of this run that are alive, whoever their parent is."""
        return marked(MARK, self.id)

    def named(self, name: str) -> list[psutil.Process]:
        """Returns those processes whose command line holds `name`, such as TrialProcess."""
        return [process for process in self.processes() if name in command_of(process)]

    def left_after(self, within_s: float) -> list[str]:
        """Returns what still runs after so long at most; an empty list as soon as nothing does."""
        return _left_after(self.id, within_s)

    def end(self) -> None:
        for process in [p for p in self.processes()]:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self._out.close()
        self._err.close()


def _faulty_variables(folder: Path, run_id: str) -> dict[str, str]:
    """Returns the environment in which all processes of the run have the model `faulty`."""
    (folder / "faults").mkdir(exist_ok=True)
    paths = [FAULTY, os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), MARK: run_id}
    return {**own, "FAULTS_FOLDER": str(folder / "faults")}


def _left_after(run_id: str, within_s: float) -> list[str]:
    deadline = time.monotonic() + within_s
    while (left := marked(MARK, run_id)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return [_described(process) for process in left]


def _described(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:120]}"
    except psutil.Error:
        return f"{process.pid}"


@contextmanager
def searching(
    folder: Path, *arguments: str, prefix: Sequence[str] = (), **variables: str
) -> Iterator[Search]:
    """Runs the search in the background; at the end of the block nothing of it is left.

    `prefix` is a command that runs the search's, such as `prlimit`.
    """
    search = Search(folder, *arguments, prefix=prefix, **variables)
    try:
        yield search
    finally:
        search.end()


class Ended(NamedTuple):
    folder: Path
    out: str
    err: str


def searched_inside(
    folder: Path, *arguments: str, codes: Sequence[int] = (1,), **variables: str
) -> Ended:
    """Runs the search to its end with a driver in this process, where all is imported.

    Raises: AssertionError if it ends with none of these exit codes, or leaves a process.
    """
    run_id = uuid.uuid4().hex
    own = {**_faulty_variables(folder, run_id), **variables}
    with pytest.MonkeyPatch.context() as patch, here(folder, **own) as (out, err):
        patch.syspath_prepend(FAULTY)
        from faulty_model import Faulty

        patch.setitem(MODELS, "faulty", Faulty)
        patch.setattr(precheck, "TAKES_ANYTHING", precheck.TAKES_ANYTHING | {"faulty"})
        code = exit_code("search", *arguments)
    ended = Ended(folder, out.getvalue(), err.getvalue())
    assert code in codes, ended
    assert "Traceback" not in ended.err, ended.err
    assert _left_after(run_id, 30) == []
    return ended


def by_fault(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the ledger's record of each fault's trial."""
    return {r["params"]["model.faulty.fault"]: r for r in finished(folder)}


def assert_each_once(folder: Path, *, trials: int) -> None:
    """Every finished trial is in the ledger once, and in MLflow once and ended."""
    ids = [f"t{number:04}" for number in range(trials)]
    assert sorted(record["trial_id"] for record in finished(folder)) == ids
    runs = mlflow_runs(folder)
    assert [name for name, _ in runs] == ids, Counter(name for name, _ in runs)
    assert {status for _, status in runs} <= {"FINISHED", "FAILED"}, runs


def assert_unlocked(folder: Path) -> None:
    """Nobody holds the study, a turnstile or the cache of data."""
    cache = Path(os.environ["TUNE_SPEED_CACHE"])
    locks = [path for path in folder.glob("turnstile/**/*") if path.is_file()]
    locks += cache.glob("*.lock")
    locks += folder.glob("tune_speed_studies/*/ledger.jsonl")
    assert any(path.name == "ledger.jsonl" for path in locks)
    for path in locks:
        # A killed process has its files open until the last of its threads is gone.
        deadline = time.monotonic() + 10
        while not is_free(path):
            assert time.monotonic() < deadline, f"{path} is held by {holders(path)}"
            time.sleep(0.1)


def is_free(path: Path) -> bool:
    with path.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def holders(path: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if any(file.path == str(path) for file in process.open_files()):
                found.append(" ".join(process.cmdline()) or process.name())
    return found


def run_of(record: dict[str, Any]) -> dict[str, Any]:
    run: dict[str, Any] = record["runs"][-1]
    return run

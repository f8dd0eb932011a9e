"""The installed command, run as a user runs it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TUNE_SPEED = str(Path(sys.executable).parent / "tune-speed")

TINY_STUDY = """
study: tiny
workload:
  dataset: {name: digits}
  target: {metric: accuracy, value: 0.8}
  max_train_s: 30
  split: {validation_frac: 0.2, train_samples: 300, validation_samples: 100}
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.02, high: 0.4, log: true}}}
  lr_schedule: one_cycle
  epochs: {low: 1, high: 10}
  batch_size: {choices: [25, 50]}
search: {trials: 6, concurrent: 1, policy: random, seed: 1}
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment in which a command keeps everything in `folder`."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("TUNE_SPEED", "MLFLOW", "RAY"))}
    cache = os.environ["TUNE_SPEED_CACHE"]
    places = {"TUNE_SPEED_CACHE": cache, "TUNE_SPEED_TURNSTILE": str(folder / "turnstile")}
    return {**own, **places, "OMP_NUM_THREADS": "1", "PWD": str(folder)}


def run(
    *arguments: str,
    folder: Path,
    timeout_s: float = 300,
    prefix: Sequence[str] = (),
    **variables: str,
) -> Done:
    """Runs `tune-speed` with these arguments in `folder` and waits for its end.

    `prefix` is a command that runs another one, such as `nice`.
    """
    done = subprocess.run(
        [*prefix, TUNE_SPEED, *arguments],
        cwd=folder,
        env={**environment(folder), **variables},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@contextmanager
def here(folder: Path, **variables: str) -> Iterator[tuple[StringIO, StringIO]]:
    """Makes this process as one that was started in `folder`; yields what it prints."""
    out, err = StringIO(), StringIO()
    before, wanted = dict(os.environ), {**environment(folder), **variables}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        try:
            _set_environment(wanted)
            yield out, err
        finally:
            _set_environment(before)


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def run_inside(*arguments: str, folder: Path, **variables: str) -> Done:
    """Runs `tune-speed` as `run` does, but in this process, where all is imported.

    A search saves seven seconds of processor time so; its trials get processes of their own.
    """
    with here(folder, **variables) as (out, err):
        code = exit_code(*arguments)
    return Done(code, out.getvalue(), err.getvalue())


def exit_code(*arguments: str) -> Any:
    """Runs `tune-speed` in this process, as it is, and returns its exit code."""
    from tune_speed.cli import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tune-speed", *arguments])
        try:
            main.main()
        except SystemExit as ended:
            return ended.code or 0
    return 0


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """Starts `tune-speed` in a process group of its own, as a shell does.

    Tests that themselves run in a shell's background have Ctrl-C switched off for all they start.
    """
    return subprocess.Popen(
        ["env", "--default-signal=INT", TUNE_SPEED, *arguments],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ledger(folder: Path, study: str = "tiny") -> list[dict[str, Any]]:
    """Returns the events of a study's ledger, without a line that is being written."""
    path = folder / "tune_speed_studies" / study / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def finished(folder: Path, study: str = "tiny") -> list[dict[str, Any]]:
    """Returns the records of a study's ledger, in words."""
    from tune_speed.core.records import TrialRecord
    from tune_speed.core.words import IN_WORDS

    records = [event["record"] for event in ledger(folder, study) if event["event"] == "finished"]
    read = map(TrialRecord.model_validate, records)
    return [record.model_dump(mode="json", context=IN_WORDS) for record in read]


def mlflow_runs(folder: Path) -> list[tuple[str, str]]:
    """Returns name and status of every MLflow run but the searches' own, read from the database."""
    import sqlite3
    from contextlib import closing

    query = (
        "select r.name, r.status from runs r join tags t on r.run_uuid = t.run_uuid"
        " where t.key = 'mlflow.parentRunId' and r.lifecycle_stage = 'active' order by r.name"
    )
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        return list(connection.execute(query))


# --- A wheel of the package, built as a user builds it

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """Returns a wheel in `folder`, of a copy of this checkout: building leaves files behind."""
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("tune_speed", "search_spaces"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, checkout)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), "."]
    subprocess.run(pip, cwd=checkout, check=True, capture_output=True, text=True)
    shutil.rmtree(checkout)
    (wheel,) = folder.glob("*.whl")
    return wheel

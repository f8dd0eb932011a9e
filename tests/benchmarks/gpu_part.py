"""What a part of `on_gpu.py` gets and returns, and how it runs programs."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
CIFAR10 = ("cifar10-train.parquet", "cifar10-test.parquet")
SEARCHING = ("ray", "optuna", "mlflow")


class Options(NamedTuple):
    device: str
    """`cuda`, or `cpu` in a rehearsal."""
    data: Path | None
    folder: Path
    """Empty; for the part alone."""
    others: Path | None = None
    """Folder of others' scripts."""

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


class Row(NamedTuple):
    figure: str
    value: float | str
    bar: str = ""
    held: bool | None = None
    """None: the figure has no bar."""
    n: int = 1


class Part(NamedTuple):
    title: str
    run: Callable[[Options], Iterable[Row]]
    limit_s: float
    """Longest time [s]."""
    least_s: float
    """Is not begun with less time than that [s]."""
    modules: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    """Files that it needs in the folder of the data."""
    others: tuple[str, ...] = ()
    """Files that it needs in the folder of others' scripts."""
    can_rehearse: bool = False


def command(*words: object, env: Mapping[str, str] | None = None) -> str:
    """Returns what a program prints, and prints it. Raises: RuntimeError if it fails."""
    with subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = list[str]()
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise RuntimeError(f"{words[0]} ended with {process.returncode}")
    return "".join(lines)


def tune_speed(*words: object, folder: Path, allowed: Sequence[int] = (0,)) -> str:
    """Returns what a command of ours prints, with studies, store and cache in a folder."""
    places = {
        "TUNE_SPEED_STUDIES": str(folder / "studies"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tune_speed", *map(str, words)],
        cwd=folder,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in allowed:
        raise RuntimeError(f"tune-speed {words[0]}: {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout


@contextmanager
def timed(name: str) -> Iterator[list[float]]:
    """Prints how long something took, and leaves the seconds in the list that it yields."""
    began_s, took_s = time.monotonic(), list[float]()
    yield took_s
    took_s.append(round(time.monotonic() - began_s, 1))
    print(f"{name}: {took_s[0]} s", flush=True)

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from tune_speed.data.augment import Augmentation
from tune_speed.data.base import Images
from tune_speed.data.loaders import Loader, TorchDataLoader
from tune_speed.errors import DataError

SCRIPT = """
import sys, time
import numpy as np, torch
from tune_speed.data.augment import Augmentation
from tune_speed.data.base import Images
from tune_speed.data.loaders import TorchDataLoader

if __name__ == "__main__":
    images = Images(np.zeros((64, 4, 4, 1), np.uint8), np.zeros(64, np.int64))
    loader = TorchDataLoader(workers=2).open(
        images, mean=(0.0,), std=(1.0,), batch_size=4, augmentation=Augmentation(), seed=0,
        device=torch.device("cpu"), channels_last=False,
    )
    batches = loader.epoch(0)
    next(batches)
    print("ready", flush=True)
    time.sleep(600)
"""


def open_with_workers(config: TorchDataLoader) -> Loader:
    images = Images(np.arange(64 * 48, dtype=np.uint8).reshape(64, 4, 4, 3), np.arange(64))
    return config.open(
        images,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        batch_size=4,
        augmentation=Augmentation(),
        seed=0,
        device=torch.device("cpu"),
        channels_last=True,
    )


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Returns the processes below `process`, but for multiprocessing's two servers."""
    servers = [child for child in process.children() if "multiprocessing" in str(child.cmdline())]
    below = {child.pid: child for child in process.children(recursive=True)}
    return [child for pid, child in below.items() if pid not in {server.pid for server in servers}]


def until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("is_left_early", [False, True])
def test_close_leaves_no_worker(is_left_early: bool) -> None:
    loader = open_with_workers(TorchDataLoader(workers=2))
    batches = loader.epoch(0)
    next(batches)
    assert len(workers_of(psutil.Process())) == 2
    if not is_left_early:
        list(batches)
    loader.close()
    assert workers_of(psutil.Process()) == []


def test_workers_that_do_not_persist_end_with_their_epoch() -> None:
    loader = open_with_workers(TorchDataLoader(workers=1, persistent_workers=False))
    list(loader.epoch(0))
    assert workers_of(psutil.Process()) == []
    loader.close()


def test_persistent_workers_are_the_same_in_every_epoch() -> None:
    loader = open_with_workers(TorchDataLoader(workers=2))
    before = {worker.pid for worker in workers_of(psutil.Process())}
    for epoch in range(3):
        list(loader.epoch(epoch))
    assert {worker.pid for worker in workers_of(psutil.Process())} == before
    loader.close()


def test_killed_worker_is_an_error_and_not_a_hang() -> None:
    loader = open_with_workers(TorchDataLoader(workers=2, prefetch_factor=1))
    batches = loader.epoch(0)
    next(batches)
    workers_of(psutil.Process())[0].kill()
    started = time.monotonic()
    with pytest.raises(DataError, match=r"deliver a batch within 120 s, but: .* exited"):
        list(batches)
    assert time.monotonic() - started < 12  # torch looks every 5 s
    assert workers_of(psutil.Process()) == []
    loader.close()


def test_hanging_worker_is_an_error_after_the_time_limit() -> None:
    loader = open_with_workers(TorchDataLoader(workers=1, prefetch_factor=1, timeout_s=0.5))
    batches = loader.epoch(0)
    next(batches)
    workers_of(psutil.Process())[0].suspend()
    with pytest.raises(DataError, match=r"deliver a batch within 0.5 s, but: .* timed out"):
        list(batches)
    assert workers_of(psutil.Process()) == []
    loader.close()


def test_more_workers_than_cores_need_no_warning() -> None:
    loader = open_with_workers(TorchDataLoader(workers=(os.cpu_count() or 1) + 1))
    assert sum(len(labels) for _, labels in loader.epoch(0)) == 64
    loader.close()


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
    below = psutil.Process(parent.pid).children(recursive=True)
    assert len(below) >= 3  # two workers and their server
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)
    parent.stdout.close()
    assert until(lambda: not any(p.is_running() for p in below), seconds=30)

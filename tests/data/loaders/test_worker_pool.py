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
from helpers.processes import command_of, is_alive

from tune_speed.core.errors import DataError
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Batching, Loader
from tune_speed.data.loaders.configs import Streaming
from tune_speed.data.loaders.worker_pool import SharedArray, WorkerPool, map_array
from tune_speed.data.orders import SampleOrder
from tune_speed.data.workers import Worker

SCRIPT = """
import time
import numpy as np
from tune_speed.data.loaders.worker_pool import WorkerPool

pixels = np.zeros((64, 4, 4, 1), np.uint8)
pool = WorkerPool(pixels, 4, workers=2, prefetch_factor=2, timeout_s=60)
pool.begin(iter([np.arange(4)] * 16))
pool.fill(np.empty((4, 4, 4, 1), np.uint8))
print("ready", flush=True)
time.sleep(600)
"""


def open_with_workers(config: Streaming) -> Loader:
    images = Images(np.arange(64 * 48, dtype=np.uint8).reshape(64, 4, 4, 3), np.arange(64))
    halves = (0.5, 0.5, 0.5)
    return config.open(images, Batching(SampleOrder(64, 4, 0), halves, halves, torch.device("cpu")))


def workers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "data/boxes.py" in command_of(child)]


def until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("is_left_early", [False, True])
def test_close_leaves_no_worker(is_left_early: bool) -> None:
    loader = open_with_workers(Streaming(workers=2))
    batches = loader.epoch(0)
    next(batches)
    assert len(workers()) == 2
    if not is_left_early:
        list(batches)
    loader.close()
    assert workers() == []


def test_workers_that_do_not_persist_end_with_their_epoch() -> None:
    loader = open_with_workers(Streaming(workers=1, persistent_workers=False))
    list(loader.epoch(0))
    assert workers() == []
    loader.close()


def test_persistent_workers_are_the_same_in_every_epoch() -> None:
    loader = open_with_workers(Streaming(workers=2))
    before = {worker.pid for worker in workers()}
    for epoch in range(3):
        list(loader.epoch(epoch))
    assert {worker.pid for worker in workers()} == before
    loader.close()


def test_killed_worker_is_an_error_at_once() -> None:
    loader = open_with_workers(Streaming(workers=2, prefetch_factor=1))
    batches = loader.epoch(0)
    next(batches)
    workers()[0].kill()
    started = time.monotonic()
    with pytest.raises(DataError, match=r"ended with exit code -9: memory may have run out\. Try"):
        list(batches)
    assert time.monotonic() - started < 5
    assert workers() == []
    loader.close()


def test_hanging_worker_is_an_error_after_the_time_limit() -> None:
    loader = open_with_workers(Streaming(workers=1, prefetch_factor=1, timeout_s=2.0))
    batches = loader.epoch(0)
    next(batches)
    workers()[0].suspend()
    with pytest.raises(DataError, match=r"did nothing for 2 s \(`timeout_s`\)\. Try fewer"):
        list(batches)
    assert workers() == []
    loader.close()


def test_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DataError, match="ended with exit code 1: see what it printed above"):
        open_with_workers(Streaming(workers=1))
    assert workers() == []


def test_ctrl_c_does_not_reach_workers() -> None:
    loader = open_with_workers(Streaming(workers=1))
    workers()[0].send_signal(signal.SIGINT)
    assert sum(len(labels) for _, labels in loader.epoch(0)) == 64
    loader.close()


def fill_one(pool: WorkerPool) -> list[int]:
    room = np.zeros((4, 1, 1, 1), np.uint8)
    return room[: pool.fill(room)].ravel().tolist()


@pytest.mark.parametrize("prefetch_factor", [1, 3])
def test_batches_come_in_order_however_far_workers_are_ahead(prefetch_factor: int) -> None:
    pixels = np.arange(50, dtype=np.uint8).reshape(-1, 1, 1, 1)
    pool = WorkerPool(pixels, 4, workers=2, prefetch_factor=prefetch_factor, timeout_s=60)
    pool.begin(np.arange(start, min(50, start + 4)) for start in range(0, 50, 4))
    for start in range(0, 50, 4):
        time.sleep(0.02)  # workers go on with all that they may
        assert fill_one(pool) == list(range(start, min(50, start + 4)))
    assert fill_one(pool) == []
    pool.close()


def test_what_was_asked_for_before_is_forgotten_at_a_new_beginning() -> None:
    pixels = np.arange(100, dtype=np.uint8).reshape(-1, 1, 1, 1)
    pool = WorkerPool(pixels, 1, workers=2, prefetch_factor=2, timeout_s=60)
    pool.begin(np.array([i]) for i in range(100))
    fill_one(pool)
    pool.begin(np.array([i]) for i in (7, 8, 9))
    assert [fill_one(pool) for _ in range(4)] == [[7], [8], [9], []]
    pool.close()


@pytest.mark.parametrize("is_mapped", [False, True])
def test_set_is_shared_and_not_copied_to_each_worker(is_mapped: bool, tmp_path: Path) -> None:
    pixels = np.zeros((64, 1024, 1024, 1), dtype=np.uint8)
    if is_mapped:
        np.save(tmp_path / "pixels.npy", pixels)
        pixels = np.asarray(np.load(tmp_path / "pixels.npy", mmap_mode="r"))
    before = psutil.Process().memory_info()
    pool = WorkerPool(pixels, 1, workers=2, prefetch_factor=1, timeout_s=60)
    grown = psutil.Process().memory_info().rss - before.rss
    assert (grown < pixels.nbytes / 2) == is_mapped  # in memory, the training has a copy to share
    pool.begin(np.array([i]) for i in range(64))
    room = np.empty((1, *pixels.shape[1:]), np.uint8)
    for _ in range(64):
        pool.fill(room)
    for worker in workers():
        memory = worker.memory_info()
        assert memory.shared > pixels.nbytes / 2 - 2**20  # each gathered half of the images
        assert memory.rss - memory.shared < pixels.nbytes
    pool.close()


def test_mapped_set_is_still_served_when_its_file_is_gone(tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", np.arange(8, dtype=np.uint8).reshape(-1, 1, 1, 1))
    pixels = np.asarray(np.load(tmp_path / "pixels.npy", mmap_mode="r"))
    (tmp_path / "pixels.npy").unlink()
    pool = WorkerPool(pixels, 4, workers=1, prefetch_factor=1, timeout_s=60)
    pool.begin(iter([np.array([5, 2])]))
    assert fill_one(pool) == [5, 2]
    pool.close()


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
    below = psutil.Process(parent.pid).children(recursive=True)
    assert len(below) == 2
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)
    parent.stdout.close()
    assert until(lambda: not any(map(is_alive, below)), seconds=10)


def test_requests_fill_their_slots_until_the_pipe_closes(random_pixels):
    pixels, given = random_pixels(9, 2, 3, 1), [[8, 0, 8, 3], [1, 2, 7, 7]]
    arrays = {
        "source": SharedArray.of(pixels),
        "indices": SharedArray.of(np.array(given)),
        "slots": SharedArray.empty((2, 4, 2, 3, 1), np.uint8),
    }
    slots = arrays["slots"].array
    sent = {n: [a.file.fileno(), a.array.shape, a.array.dtype.str] for n, a in arrays.items()}
    worker = Worker(file for file, *_ in sent.values())
    for asked in (("share", sent), ("fill", 1, 4), ("fill", 0, 2)):
        worker.ask(*asked)
    assert [worker.answer(30) for _ in range(3)] == [None] * 3
    assert np.array_equal(slots[1], pixels[given[1]])
    assert np.array_equal(slots[0, :2], pixels[[8, 0]]) and not slots[0, 2:].any()
    worker.end(wait_s=10)
    assert worker.process.returncode == 0
    for shared in arrays.values():
        shared.file.close()


@pytest.mark.parametrize("system", ["Linux", "other"])
def test_what_one_writes_the_other_sees(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if system == "other":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    shared = SharedArray.empty((3, 5), np.int64)
    other = map_array(shared.file.fileno(), [3, 5], "<i8")
    shared.array[2, 4] = -7
    assert other[2, 4] == -7 and other.sum() == -7
    shared.file.close()

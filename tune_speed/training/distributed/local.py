"""A trial on the devices of this machine, without Ray."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess, parent_process
from pathlib import Path

import torch
from torch import multiprocessing

from tune_speed.components.plugins.registry import receive, shipped
from tune_speed.core.errors import ConfigError
from tune_speed.core.words import StopReason
from tune_speed.runtime.device import resolve_device
from tune_speed.runtime.file_lock import TemporaryFolder
from tune_speed.training.distributed import supervisor
from tune_speed.training.objective import Trial, run_trial
from tune_speed.training.trial import TrialSpec
from tune_speed.training.worker import local_rank

Watch = Callable[[supervisor.RankChannel], None]
"""Watches over the process of a rank, which has this channel to its supervisor."""


def run_here(
    spec: TrialSpec,
    *,
    interrupt: Callable[[], bool] = lambda: False,
    refuse: tuple[type[Exception], ...] = (),
    watch: Watch | None = None,
) -> Trial:
    """Runs a trial, each device in its process; `watch` is called in rank 0's of several."""
    if spec.recipe.devices == 1:
        return run_trial(spec, interrupt=interrupt, refuse=refuse)
    launch = partial(LocalCrew, watch=watch)
    return supervisor.run_together(spec, launch=launch, interrupt=interrupt, refuse=refuse)


class LocalCrew:
    """Processes for the ranks of a trial, and a pipe to each."""

    def __init__(self, spec: TrialSpec, *, watch: Watch | None = None) -> None:
        """Starts them; see `run_here`. Raises: ConfigError if there are not enough GPUs."""
        size, device = spec.recipe.devices, resolve_device(spec.allotment.device)
        there = torch.cuda.device_count() if device.type == "cuda" else size
        if size > there:
            raise ConfigError.of(
                "recipe.devices",
                f"must be at most the number of GPUs here, which is {there}",
                given=str(size),
                hint="Try fewer devices with more accumulation_steps: the gradient is the same.",
            )
        # Torch is imported once for all ranks, in all trials; optimizers import `torch._dynamo`.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "torch._dynamo"])
        self._folder = TemporaryFolder()
        self._pipes: list[connection.Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            name = f"cuda:{rank}" if device.type == "cuda" else "cpu"
            own = spec.allotment.model_copy(update={"device": name})
            own_spec = spec.model_copy(update={"allotment": own})
            own_watch = None if rank else watch
            arguments = (_Here(), own_spec, rank, self._folder.path, theirs, own_watch)
            process = context.Process(target=_rank, args=arguments, name=f"rank {rank}")
            with _without_ctrl_c():
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._open = list(self._pipes)
        self._ended: set[int] = set()

    def receive(self, *, timeout_s: float) -> supervisor.Standing | supervisor.Ended | None:
        """Returns what some rank says; None if nobody says anything in time."""
        for pipe in connection.wait(self._open, timeout_s):
            assert isinstance(pipe, connection.Connection)
            try:
                said: supervisor.Standing | supervisor.Ended = pipe.recv()
            except (EOFError, ConnectionError):
                self._open.remove(pipe)
                self._refuse_death(self._pipes.index(pipe))
                continue
            if isinstance(said, supervisor.Ended):
                self._ended.add(said.rank)
            return said
        return None

    def answer(self, reason: StopReason | None) -> None:
        try:
            self._pipes[0].send(reason)
        except ConnectionError:
            self._refuse_death(0)

    def close(self) -> None:
        # Where one ended, so do the others.
        deadline = time.monotonic() + (supervisor.GRACE_S if self._ended else 0.0)
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._folder.close()

    def _refuse_death(self, rank: int) -> None:
        if rank in self._ended:
            return
        process = self._processes[rank]
        process.join(supervisor.GRACE_S)
        raise supervisor.RanksDied(
            f"the process of rank {rank} died with exit code {process.exitcode}"
        )


class _Here:
    """Gives a rank what this process has now, before configurations are unpickled there."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[dict[str, str], str]]:
        return _arrive, (dict(os.environ), shipped())


def _arrive(variables: dict[str, str], plugins: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # `close` ends it, not Ctrl-C.
    # The server of forks has those of its own start.
    os.environ.clear()
    os.environ.update(variables)
    receive(plugins)


def _rank(
    _: None,
    spec: TrialSpec,
    rank: int,
    folder: Path,
    pipe: connection.Connection,
    watch: Watch | None,
) -> None:
    _end_with_supervisor()
    line = _Pipe(pipe)
    if watch is not None:
        watch(line)
    device = torch.device(spec.allotment.device)
    with local_rank(rank, spec.recipe.devices, device, folder=folder) as ranks:
        supervisor.work(spec, ranks, line)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    # Its own start would switch Ctrl-C on again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_supervisor() -> None:
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="end with supervisor", daemon=True).start()


class _Pipe:
    def __init__(self, pipe: connection.Connection) -> None:
        self._pipe = pipe

    def ask(self, standing: supervisor.Standing) -> StopReason | None:
        self._pipe.send(standing)
        reason: StopReason | None = self._pipe.recv()
        return reason

    def tell(self, ended: supervisor.Ended) -> None:
        self._pipe.send(ended)


_: type[supervisor.WorkerGroup] = LocalCrew

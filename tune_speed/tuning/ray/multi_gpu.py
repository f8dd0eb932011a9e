"""A trial on several devices of a Ray cluster: Ray Train's `TorchTrainer` runs its ranks."""

# Ray Train reserves the devices of a trial in a placement group of its own: all of them or none, so
# that no two trials hold half of what each needs. The process through which Ray Tune runs such a
# trial therefore reserves nothing itself: since version 2 of its API, Ray Train uses no other
# placement group, so its devices would be requested twice, forever in vain where trials fill the
# cluster. Until its devices are free, a trial waits, off every clock.
#
# Records and answers go through an actor that the trial's process owns, and that dies with it:
# `ray.train.report` has no way back for an answer.

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from tune_speed.components.plugins.registry import shipped
from tune_speed.core.errors import TuneSpeedError, readable
from tune_speed.runtime.temporary import TemporaryFolder
from tune_speed.study.settings import ResourceConfig
from tune_speed.training.distributed import supervisor
from tune_speed.training.distributed.supervisor import Ended, RanksDied, Standing
from tune_speed.training.objective import Trial
from tune_speed.training.ranks import WAIT_S, Ranks
from tune_speed.training.trial import TrialSpec
from tune_speed.tuning.ray.compat import without_group_cleaner
from tune_speed.tuning.ray.liveness import Watchdog, leave
from tune_speed.tuning.ray.node_query import on_nodes
from tune_speed.tuning.ray.placement_groups import note_group
from tune_speed.tuning.ray.worker import set_up_worker

# Settings of Ray Train, unless the environment has others.
RAY_TRAIN = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # Saves a process, which gives preempted workers time for a checkpoint: ranks have saved theirs.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
MOST_STARTS = 60
"""How often Ray Train may wait for devices, a minute each time."""
ANSWER_S = 60.0
"""Time-out of a call to the mailbox [s]."""
LEAVE_S = 30.0
"""How long Ray Train has to end and to release its devices [s]."""


class TrialHung(TuneSpeedError):
    """A rank takes no step; the message holds the stacks of its threads."""


def run_on_cluster(
    spec: TrialSpec,
    resources_json: str,
    *,
    holdings: str,
    interrupt: Callable[[], bool],
    node_ids: Sequence[str] = (),
    hang_after_s: float = math.inf,
) -> Trial:
    """Runs one trial on devices of the cluster, each of which gets a `ResourceConfig`.

    `holdings` is the name of the driver's `PlacementGroups`, `interrupt` is polled about twice a
    second. Ranks run on the nodes named, or on any; rank 0, which waits for the others, may show no
    sign of life for `hang_after_s` [s].

    Raises: Interrupted; RanksDied, because a trial whose process died may be run again.
    """
    launch = partial(
        RayCrew,
        resources=ResourceConfig.model_validate_json(resources_json),
        node_ids=node_ids,
        options={"holdings": holdings, "hang_after_s": hang_after_s},
    )
    return supervisor.run_together(spec, launch=launch, interrupt=interrupt, refuse=(RanksDied,))


class RayCrew:
    """Workers of Ray Train, and the actor through which they talk to this process."""

    def __init__(
        self,
        spec: TrialSpec,
        *,
        resources: ResourceConfig,
        node_ids: Sequence[str],
        options: dict[str, Any],
    ) -> None:
        """Requests the devices and returns; the ranks start when these are free."""
        for name, value in RAY_TRAIN.items():
            os.environ.setdefault(name, value)
        logging.getLogger("ray.train").setLevel(logging.CRITICAL)
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        without_group_cleaner()
        self._mailbox = ray.remote(_Mailbox).options(num_cpus=0).remote()
        self._folder = TemporaryFolder()
        self._failure: BaseException | None = None
        self._num_ranks = self._num_left = spec.recipe.devices
        config = {"spec": spec.model_dump_json(), "plugins": shipped(), "mailbox": self._mailbox}
        failure = FailureConfig(max_failures=0, controller_failure_limit=MOST_STARTS)
        trainer = TorchTrainer(
            _rank,
            train_loop_config=config | options,
            torch_config=TorchConfig(timeout_s=int(WAIT_S)),
            scaling_config=ScalingConfig(
                num_workers=spec.recipe.devices,
                use_gpu=resources.gpu > 0,
                resources_per_worker=resources.bundle(),
                label_selector=on_nodes(node_ids) or None,
            ),
            run_config=RunConfig(
                name="ranks", storage_path=str(self._folder.path), failure_config=failure
            ),
        )

        def fit() -> None:
            try:
                trainer.fit()
            except BaseException as error:  # Raised again in `receive`, in the trial's thread.
                self._failure = error

        self._fitting = threading.Thread(target=fit, name="ray train", daemon=True)
        self._fitting.start()

    def receive(self, *, timeout_s: float) -> Standing | Ended | None:
        """Returns the next message of a rank; None if none comes in time."""
        is_over = not self._fitting.is_alive()
        said: Standing | Ended | None = self._call("receive", 0.0 if is_over else timeout_s)
        if said is None and is_over and self._num_left:
            raise RanksDied(f"Ray Train ended: {self._failure}") from self._failure
        self._num_left -= isinstance(said, Ended)
        return said

    def answer(self, reason: str | None) -> None:
        """Answers rank 0."""
        self._call("answer", reason)

    def close(self) -> None:
        """Ends all ranks that still run, and waits until Ray Train has released all devices."""
        if self._num_left < self._num_ranks:  # Where one ended, so do the others.
            self._fitting.join(supervisor.GRACE_S)
        try:
            for worker in self._call("workers") if self._fitting.is_alive() else ():
                ray.kill(worker)
        except (RayError, GetTimeoutError):
            pass  # The list of workers is lost; without a mailbox the ranks end by themselves.
        ray.kill(self._mailbox)
        self._fitting.join(LEAVE_S)
        self._folder.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        return ray.get(getattr(self._mailbox, method).remote(*arguments), timeout=ANSWER_S)


def _rank(config: dict[str, Any]) -> None:
    """Runs one rank, from its start to its end, in a worker of Ray Train."""
    import ray.train.torch

    mailbox = config["mailbox"]
    ray.get(mailbox.arrive.remote(ray.get_runtime_context().current_actor))
    set_up_worker(config["plugins"])
    spec = TrialSpec.model_validate_json(config["spec"])
    note_group(config["holdings"], spec.trial_id)
    device = str(ray.train.torch.get_device())
    allotment = spec.allotment.model_copy(update={"device": device})
    ranks, channel = Ranks.here(), _Channel(mailbox)

    def on_hang(stacks: str, quiet_s: float) -> None:
        error = TrialHung(f"no step for {quiet_s:.0f} s\n{readable(stacks)}")
        channel.tell(Ended(rank=0, error=error))
        time.sleep(LEAVE_S)  # The trial's process ends all ranks meanwhile.
        leave()

    if ranks.is_first and config["hang_after_s"] < math.inf:
        watchdog = Watchdog(on_hang=on_hang)
        watchdog.watch(limit_s=config["hang_after_s"])
    supervisor.work(spec.model_copy(update={"allotment": allotment}), ranks, channel)


class _Mailbox:
    def __init__(self) -> None:
        self._said: asyncio.Queue[Standing | Ended] = asyncio.Queue()
        self._answers: asyncio.Queue[str | None] = asyncio.Queue()
        self._workers: list[Any] = []

    async def arrive(self, worker: Any) -> None:
        self._workers.append(worker)

    async def workers(self) -> list[Any]:
        return self._workers

    async def tell(self, ended: Ended) -> None:
        await self._said.put(ended)

    async def ask(self, standing: Standing) -> str | None:
        await self._said.put(standing)
        return await self._answers.get()

    async def receive(self, timeout_s: float) -> Standing | Ended | None:
        if not self._said.empty():
            return self._said.get_nowait()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._said.get()
        except TimeoutError:
            return None

    async def answer(self, reason: str | None) -> None:
        await self._answers.put(reason)


class _Channel:
    """A rank's channel to the trial's process, see `supervisor.RankChannel`."""

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox

    def ask(self, standing: Standing) -> str | None:
        reason: str | None = ray.get(self._mailbox.ask.remote(standing))
        return reason

    def tell(self, ended: Ended) -> None:
        ray.get(self._mailbox.tell.remote(ended))

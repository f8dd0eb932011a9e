"""A process with exclusive use of a whole device, reserved through Ray, for certified runs."""

from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from tune_speed.components.plugins.registry import shipped
from tune_speed.core.errors import DeviceFailed, ServiceError, TuneSpeedError
from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.core.words import StopKind, StopReason
from tune_speed.custom.shipping import Loop, calling
from tune_speed.custom.spec import OwnSpec, read_spec
from tune_speed.training.trial import SpecBase, TrialSpec, make_record, utc_now
from tune_speed.tuning.ray.node_query import on_nodes
from tune_speed.tuning.ray.worker import set_up_worker

POLL_S = 1.0
"""How often to look whether to stop [s]."""
WAIT_S = 1800.0
"""Longest wait for the device to become free [s]."""
NOTE_EVERY_S = 30.0
# A run whose process died is run once more; dying twice, it is recorded as failed.
MAX_ATTEMPTS = 2
REFUSED = (TuneSpeedError, DeviceFailed)
"""Errors that are no outcome of a run."""


class Stopped(Exception):
    """The user stopped it; a run that was under way is discarded."""


class ExclusiveDevice:
    """A whole GPU with its cores, or all cores of a node."""

    def __init__(
        self,
        *,
        device: str,
        cpu_threads: int,
        devices: int = 1,
        node_ids: Sequence[str] = (),
        on_line: Callable[[str], None],
        is_stopped: Callable[[], bool],
        loop: Loop | None = None,
    ) -> None:
        """Reserves nothing yet; Ray must be connected.

        `device` is `cpu` or `cuda`; on a GPU, `cpu_threads` cores are reserved next to each. One
        run trains on `devices` GPUs at most, all on one of the nodes (none named: any). `on_line`
        sees why it has to wait; where `is_stopped` returns true meanwhile, it raises `Stopped`.
        `loop` is the training function that is run, None for recipes.
        """
        from tune_speed.tuning.ray.cluster import node_cpus

        is_gpu = device == "cuda"
        cpus = float(cpu_threads) * devices if is_gpu else node_cpus(node_ids)
        self._request: dict[str, float] = {"num_cpus": cpus, "num_gpus": float(is_gpu) * devices}
        self._there = on_nodes(node_ids) or None
        self._on_line, self._is_stopped = on_line, is_stopped
        self._loop = "" if loop is None else loop.packed
        self._actor: Any = None

    def run(self, spec: SpecBase) -> TrialRecord:
        """Runs a trial and returns its record.

        Raises: ServiceError if the device does not become free; TuneSpeedError as the trial does;
            Stopped.
        """
        started_at, message = utc_now(), ""
        for _ in range(MAX_ATTEMPTS):
            try:
                return TrialRecord.model_validate_json(self._call("run", spec.model_dump_json()))
            except (RayActorError, DeviceFailed) as error:
                self.close()
                message = str(error)
        reason = StopReason.of(StopKind.PROCESS_DIED, message=message.partition("\n")[0])
        failed = {"status": Status.FAILED, "stop_reason": reason}
        run = RunResult(seed=spec.seed, traceback=f"its process died: {message}", **failed)
        return make_record(spec, spec.recipe, run, started_at=started_at)

    def describe(self, spec: SpecBase) -> str:
        """Returns machine, code and model there as JSON; see `provenance.Surroundings`."""
        return str(self._call("describe", spec.model_dump_json()))

    def close(self) -> None:
        """Releases the device."""
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None

    def _call(self, method: str, *arguments: str) -> Any:
        if self._actor is None:
            self._actor = self._start()
        try:
            # Without a time limit: a run ends by its workload's.
            return self._wait_for(getattr(self._actor, method).remote(*arguments))
        except RayTaskError as error:
            if isinstance(error.cause, TuneSpeedError):
                raise error.cause from error
            raise

    def _wait_for(self, reference: Any, on_wait: Callable[[], None] = lambda: None) -> Any:
        """Returns the result; calls `on_wait` every `POLL_S` until then. Raises: Stopped."""
        while not self._is_stopped():
            try:
                return ray.get(reference, timeout=POLL_S)
            except GetTimeoutError:
                on_wait()
        raise Stopped

    def _start(self) -> Any:
        runner = ray.remote(_Runner).options(**self._request, label_selector=self._there)
        actor = runner.remote(shipped(), self._loop)
        waited_s = 0.0

        def on_wait() -> None:
            nonlocal waited_s
            waited_s += POLL_S
            if waited_s % NOTE_EVERY_S == 0:
                self._on_line(f"waiting for the whole device to become free ({waited_s:.0f} s)")
            if waited_s >= WAIT_S:
                raise ServiceError(
                    f"a whole device must become free within {WAIT_S:.0f} s ({self._request}), but"
                    " others hold it. Wait for them, and give the same command again."
                )

        try:
            self._wait_for(actor.ready.remote(), on_wait)
        except BaseException:
            ray.kill(actor)
            raise
        return actor


class _Runner:
    def __init__(self, plugins: str, loop: str) -> None:
        set_up_worker(plugins)
        self._loop = loop

    def ready(self) -> bool:
        return True

    def run(self, spec_json: str) -> str:
        from tune_speed.custom.trial import run_own_trial
        from tune_speed.training.distributed.local import run_here
        from tune_speed.training.objective import finish

        spec = read_spec(spec_json)
        if isinstance(spec, OwnSpec):
            train = calling(self._loop)
            return run_own_trial(spec, train, refuse=REFUSED).model_dump_json()
        assert isinstance(spec, TrialSpec)
        trial = run_here(spec, refuse=REFUSED)
        return finish(trial, on_report=lambda record: None).model_dump_json()

    def describe(self, spec_json: str) -> str:
        from tune_speed.tuning.provenance import describe

        return describe(read_spec(spec_json)).model_dump_json()

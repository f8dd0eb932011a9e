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
from tune_speed.tuning.ray.node_query import on_nodes, set_up_worker

POLL_S = 1.0
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
        gpus: int,
        cpu_threads: int,
        node_ids: Sequence[str] = (),
        on_line: Callable[[str], None],
        is_stopped: Callable[[], bool],
        loop: Loop | None = None,
    ) -> None:
        """Reserves nothing yet; Ray must be connected.

        A run trains on so many `gpus` at most, next to each `cpu_threads` cores, all on one of the
        nodes (none named: any); 0: on its cores. While `on_line` sees why it has to wait,
        `is_stopped` may make it raise `Stopped`. `loop` is a training function, None for recipes.
        """
        from tune_speed.tuning.ray.cluster import node_cpus

        cpus = float(cpu_threads) * gpus if gpus else node_cpus(node_ids)
        self._request: dict[str, float] = {"num_cpus": cpus, "num_gpus": float(gpus)}
        self._there = on_nodes(node_ids) or None
        self._on_line, self._is_stopped = on_line, is_stopped
        self._loop = "" if loop is None else loop.packed
        self._actor: Any = None

    def run(self, spec: SpecBase) -> TrialRecord:
        """Raises: ServiceError if no device becomes free; what the trial refuses; Stopped."""
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
        return str(self._call("describe", spec.model_dump_json()))

    def close(self) -> None:
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

    def _wait_for(self, reference: Any, on_wait: Callable[[float], None] = lambda _: None) -> Any:
        """Returns the result; `on_wait` gets the seconds so far. Raises: Stopped."""
        waited_s = 0.0
        while not self._is_stopped():
            try:
                return ray.get(reference, timeout=POLL_S)
            except GetTimeoutError:
                waited_s += POLL_S
                on_wait(waited_s)
        raise Stopped

    def _start(self) -> Any:
        runner = ray.remote(_Runner).options(**self._request, label_selector=self._there)
        actor = runner.remote(shipped(), self._loop)
        try:
            self._wait_for(actor.ready.remote(), self._note_wait)
        except BaseException:
            ray.kill(actor)
            raise
        return actor

    def _note_wait(self, waited_s: float) -> None:
        if waited_s % NOTE_EVERY_S == 0:
            self._on_line(f"waiting for the whole device to become free ({waited_s:.0f} s)")
        if waited_s >= WAIT_S:
            raise ServiceError(
                f"a whole device must become free within {WAIT_S:.0f} s ({self._request}), but"
                " others hold it. Wait for them, and give the same command again."
            )


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

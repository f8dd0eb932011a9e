"""Measures the step rate of a recipe in one of several processes on a device."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import chain, count

from tune_speed.runtime import device as devices
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.cuda_context import context_gib
from tune_speed.runtime.process import cpu_wait_s
from tune_speed.runtime.sharing import Sharing
from tune_speed.training.autotune.micro_batch import Batch, probe_step
from tune_speed.training.build import open_loader
from tune_speed.training.objective import load_splits, resolve
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment
from tune_speed.training.worker import open_device
from tune_speed.training.workload import Workload

# Warm-up [s], at least two steps.
WARM_UP_S = 0.3
# Before and after the measured steps [s]: processes that begin together begin within less.
MARGIN_S = 0.15


class PackedSteps(AbstractContextManager["PackedSteps"]):
    """Steps that are counted, of what other trials on the device see as a trial; not compiled."""

    def __init__(self, recipe: Recipe, workload: Workload, allotment: Allotment, label: str):
        """Takes the first, slow steps. Raises: what a trial of this recipe would raise."""
        self._open = ExitStack()
        device = self._device = open_device(allotment)
        devices.reset_peak_memory(device)
        key = devices.device_key(device)
        self._sharing = self._open.enter_context(
            Sharing.open(key, study=label, trial="packing", may_have_company=True)
        )
        synchronize, turnstile = devices.synchronizer(device), self._sharing.turnstile
        self._clock = Clock(synchronize=synchronize, turnstile=turnstile)
        with self._clock.span("setup_s"):
            splits = load_splits(workload)
        # Off the clock: what is autotuned takes the turnstile by itself.
        recipe = resolve(recipe, splits, device=device, turnstile=turnstile)
        with self._clock.span("setup_s"):
            loader = open_loader(recipe, splits.train, splits, seed=0, device=device)
            self._open.callback(loader.close)
            self._take = self._open.enter_context(probe_step(recipe, splits, device=device))
        self._batches: Iterator[Batch] = chain.from_iterable(loader.epoch(i) for i in count())
        self._steps_in(WARM_UP_S)
        waited_s = cpu_wait_s() or 0.0
        num_steps, took_s = self._steps_in(WARM_UP_S)
        self.step_s = took_s / num_steps
        """Seconds of a step, roughly."""
        self.wait_frac = ((cpu_wait_s() or 0.0) - waited_s) / took_s
        """Share of the time in which this process waited for a core, or more with more threads."""

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def rate(self, *, window_s: float) -> float:
        """Returns steps a second in a window; it works before and after it, too."""
        self._steps_in(MARGIN_S)
        num_steps, took_s = self._steps_in(window_s)
        self._steps_in(MARGIN_S)
        return num_steps / took_s

    def memory_frac(self) -> float:
        """Returns the share of the device's memory that was needed, a CUDA context included."""
        device = self._device
        whole_gib = devices.memory_limit_gib(device, gpu_fraction=1.0, cpu_fraction=1.0)
        beside_gib = context_gib(device) if device.type == "cuda" else 0.0
        return (devices.peak_memory_gib(device) + beside_gib) / whole_gib

    @property
    def device_key(self) -> str:
        return devices.device_key(self._device)

    def _steps_in(self, seconds: float) -> tuple[int, float]:
        """Takes steps, one at least; returns their number and time [s], without pauses."""
        clock, num_steps = self._clock, 0
        before_s = clock.elapsed("train_s")
        with clock.span("train_s"):
            while num_steps == 0 or clock.elapsed("train_s") - before_s < seconds:
                clock.let_others_measure()
                self._take(self._batches)
                num_steps += 1
        return num_steps, clock.elapsed("train_s") - before_s

"""What to change about a recipe, read from where its time goes: one function a rule, in order.

Shares are those of the sum of the phases. Nothing is advised that `Recipe` refuses, or that has no
effect on this device. Advice is a guess from one measurement: the changed recipe is to be profiled,
and where it learns differently (another batch size) to be trained again.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from tune_speed.core.errors import ConfigError
from tune_speed.data import LOADERS
from tune_speed.data.loaders.base import Resident, Streaming
from tune_speed.experiments.profiling.result import Advice, Change, ProfileResult
from tune_speed.training.applicability import not_applicable
from tune_speed.training.recipe import Recipe

# A phase that takes the share s of a step can at most make it 1 / (1 - s) times as quick: a
# threshold is where its change begins to be worth a try.
DATA_SHARE = 0.10
COPY_SHARE = 0.05
COMPUTE_SHARE = 0.40
OPTIMIZER_SHARE = 0.20
SYNC_SHARE = 0.15
LOOP_SHARE = 0.10
GPU_IDLE_FRAC = 0.30
CORE_WAIT_FRAC = 0.10
# Of forward, backward and optimizer: beyond it the device waits for its host.
LAUNCH_FRAC = 0.80
FASTER_ARITHMETIC = 1.3
FAR_FROM_PEAK, NEAR_PEAK = 0.30, 0.60
"""Shares of the measured matrix rate."""
# About 2 is what its operations make.
SLOW_BACKWARD = 2.6
# Share of the memory limit in use up to which a batch twice as large is expected to fit.
ROOM = 0.45
# Share of the memory limit that the whole set may take up on the device.
RESIDENT_ROOM = 0.25


class Situation(NamedTuple):
    """What the rules look at."""

    recipe: Recipe
    """With numbers for all that was `auto`."""
    found: ProfileResult
    device: torch.device
    num_devices: int
    """GPUs of this machine."""
    spare_cores: int
    """Cores that this process may use beyond the threads of its operations."""
    set_bytes: int
    """Pixels of the training part, as bytes."""
    has_convolutions: bool

    def share(self, *phases: str) -> float:
        """Returns the share of these phases (`forward`, …) in the sum of all, in [0, 1]."""
        times = self.found.times
        whole_ms = times.profiled_step_ms + (times.sync_ms or 0.0)
        return sum(getattr(times, f"{phase}_ms") or 0.0 for phase in phases) / whole_ms

    @property
    def compute_share(self) -> float:
        return self.share("forward", "backward", "forward_backward")

    @property
    def idle_frac(self) -> float:
        """The share of a step as it runs in which the device does nothing."""
        return (self.found.times.idle_ms or 0.0) / self.found.times.step_ms

    @property
    def has_room(self) -> bool:
        """Whether a micro-batch twice as large is expected to fit."""
        return self.found.peak_memory_gib < ROOM * self.found.memory_limit_gib

    def rate(self, precision: str) -> float:
        """Returns the matrix rate of a precision; 0 where it was not measured."""
        return self.found.rates.matrix_tflop_per_s.get(precision, 0.0)


class Suggestion(NamedTuple):
    """What a rule suggests, before it is checked."""

    phase: str
    because: str
    changes: Mapping[str, Any] = {}
    """Values by field; those of a loader by `loader.FIELD`."""
    hint: str = ""


Rule = Callable[[Situation], Suggestion | None]


def more_workers(at: Situation) -> Suggestion | None:
    """Waiting for data ≥ 10 %, a streaming loader: twice the workers, where cores are spare."""
    loader, share = at.recipe.loader, at.share("data_wait")
    if share < DATA_SHARE or not isinstance(loader, Streaming):
        return None
    workers = loader.workers
    assert workers != "auto", "auto is resolved before profiling"
    wanted = max(1, 2 * workers)
    if wanted > workers + at.spare_cores:
        return None
    return Suggestion("data_wait", f"waiting for data {share:.0%}", {"loader.workers": wanted})


def whole_set_on_device(at: Situation) -> Suggestion | None:
    """Waiting for data and copies ≥ 10 %, a streaming loader, a set that fits: `resident`."""
    share = at.share("data_wait", "host_to_device")
    limit_bytes = at.found.memory_limit_gib * 1024**3
    fits = at.set_bytes < RESIDENT_ROOM * limit_bytes
    if share < DATA_SHARE or not isinstance(at.recipe.loader, Streaming) or not fits:
        return None
    size = f"{at.set_bytes / 1024**2:,.0f} MiB"
    return Suggestion(
        "data_wait",
        f"waiting for data and its copies {share:.0%}",
        {"loader": Resident()},
        f"the whole set, {size}, is then on the device",
    )


def larger_batch_for_data(at: Situation) -> Suggestion | None:
    """Waiting for data ≥ 10 % on a GPU that has the whole set: fewer, larger batches."""
    share = at.share("data_wait")
    is_resident = isinstance(at.recipe.loader, Resident) and at.device.type == "cuda"
    if share < DATA_SHARE or not is_resident or not at.has_room:
        return None
    return _larger_batches(at, "data_wait", f"making batches {share:.0%}")


def page_locked_copies(at: Situation) -> Suggestion | None:
    """Copies from the host ≥ 5 %, not page-locked: `pin_memory`."""
    loader, share = at.recipe.loader, at.share("host_to_device")
    if share < COPY_SHARE or not isinstance(loader, Streaming) or loader.pin_memory:
        return None
    because = f"copying from the host {share:.0%}"
    return Suggestion("host_to_device", because, {"loader.pin_memory": True})


def faster_arithmetic(at: Situation) -> Suggestion | None:
    """Forward and backward ≥ 40 %: the precision whose matrix products measured 1.3 × as quick."""
    share = at.compute_share
    other = {"fp32": "bf16", "bf16": "fp32"}.get(at.recipe.precision)
    if share < COMPUTE_SHARE or other is None:
        return None
    own_rate, other_rate = at.rate(at.recipe.precision), at.rate(other)
    if not own_rate or other_rate < FASTER_ARITHMETIC * own_rate:
        return None
    because = (
        f"forward and backward {share:.0%}, and matrix products in {other} are"
        f" {other_rate / own_rate:.1f} times as quick"
    )
    hint = "the accuracy may change" if other == "bf16" else ""
    return Suggestion("forward", because, {"precision": other}, hint)


def recorded_steps(at: Situation) -> Suggestion | None:
    """A GPU that waits for its host's launches ≥ 80 % of computing: `cuda_graph`."""
    frac = at.found.times.launch_frac
    if at.device.type != "cuda" or frac is None or frac < LAUNCH_FRAC or at.recipe.cuda_graph:
        return None
    because = f"the GPU waits for its host, which is busy launching {frac:.0%} of the step"
    return Suggestion("forward", because, {"cuda_graph": True})


def convolutions_in_channels_last(at: Situation) -> Suggestion | None:
    """Forward and backward ≥ 40 %, convolutions in NCHW: `channels_last`."""
    share = at.compute_share
    if share < COMPUTE_SHARE or at.recipe.channels_last or not at.has_convolutions:
        return None
    because = f"forward and backward {share:.0%}, with convolutions in NCHW"
    return Suggestion("forward", because, {"channels_last": True})


def compiled_network(at: Situation) -> Suggestion | None:
    """Forward and backward ≥ 40 % at < 30 % of the matrix rate on a GPU: `compile`."""
    # On a CPU it needs a C++ compiler, which is not looked for.
    share, bounds = at.compute_share, at.found.bounds
    if bounds is None or at.device.type != "cuda" or at.recipe.compile:
        return None
    if share < COMPUTE_SHARE or bounds.peak_frac >= FAR_FROM_PEAK:
        return None
    because = f"forward and backward {share:.0%} at {bounds.peak_frac:.0%} of the matrix rate"
    hint = "pays where a run is longer than compiling"
    return Suggestion("forward", because, {"compile": True}, hint)


def free_choice_of_kernels(at: Situation) -> Suggestion | None:
    """Backward ≥ 2.6 times forward, on a GPU that is held to one algorithm: `deterministic`."""
    times = at.found.times
    if at.device.type != "cuda" or not at.recipe.deterministic or not times.forward_ms:
        return None
    ratio = times.backward_ms / times.forward_ms
    if ratio < SLOW_BACKWARD:
        return None
    hint = "a seed then no longer gives the same run twice"
    because = f"backward takes {ratio:.1f} times as long as forward"
    return Suggestion("backward", because, {"deterministic": False}, hint)


def fused_update(at: Situation) -> Suggestion | None:
    """Optimizer ≥ 20 %, one operation after the other: `optimizer_kernels: fused`."""
    share = at.share("optimizer")
    if share < OPTIMIZER_SHARE or at.recipe.optimizer_kernels == "fused":
        return None
    return Suggestion("optimizer", f"optimizer {share:.0%}", {"optimizer_kernels": "fused"})


def fewer_updates(at: Situation) -> Suggestion | None:
    """Optimizer ≥ 20 %: fewer updates, by twice the batch, or by accumulation without room."""
    share = at.share("optimizer")
    if share < OPTIMIZER_SHARE:
        return None
    field = "batch_size" if at.has_room else "accumulation_steps"
    return _doubled(at, field, "optimizer", f"optimizer {share:.0%}")


def fewer_averagings(at: Situation) -> Suggestion | None:
    """Averaging gradients over devices ≥ 15 %: twice the accumulation."""
    share = at.share("sync")
    if at.recipe.devices == 1 or share < SYNC_SHARE:
        return None
    return _doubled(at, "accumulation_steps", "sync", f"averaging gradients {share:.0%}")


def larger_batch_for_loop(at: Situation) -> Suggestion | None:
    """The loop's own bookkeeping ≥ 10 %: fewer, larger batches."""
    share = at.share("loop")
    if share < LOOP_SHARE or not at.has_room:
        return None
    return _larger_batches(at, "loop", f"the loop's own bookkeeping {share:.0%}")


def larger_batch_for_idle_gpu(at: Situation) -> Suggestion | None:
    """A GPU that does nothing for ≥ 30 % of a step: fewer, larger batches."""
    frac = at.idle_frac
    if at.device.type != "cuda" or frac < GPU_IDLE_FRAC or not at.has_room:
        return None
    return _larger_batches(at, "idle", f"the GPU does nothing for {frac:.0%} of a step")


def cores_that_others_have(at: Situation) -> Suggestion | None:
    """Threads that wait for a core for ≥ 10 % of a step: the machine is not this run's alone."""
    frac = at.idle_frac
    if at.device.type != "cpu" or frac < CORE_WAIT_FRAC:
        return None
    hint = "others compute on this machine, or `run.cpu_threads` is more than its cores"
    return Suggestion("idle", f"threads wait for a core {frac:.0%} of a step", hint=hint)


def less_arithmetic(at: Situation) -> Suggestion | None:
    """At ≥ 60 % of the matrix rate: only less arithmetic is quicker."""
    bounds = at.found.bounds
    if bounds is None or bounds.peak_frac < NEAR_PEAK:
        return None
    return Suggestion(
        "forward",
        f"computing at {bounds.peak_frac:.0%} of what matrix products reach here",
        hint="only less arithmetic helps: a smaller network, smaller images"
        " (`speedups.resolution`), fewer steps",
    )


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        more_workers,
        whole_set_on_device,
        larger_batch_for_data,
        page_locked_copies,
        recorded_steps,
        faster_arithmetic,
        convolutions_in_channels_last,
        compiled_network,
        free_choice_of_kernels,
        fused_update,
        fewer_updates,
        fewer_averagings,
        larger_batch_for_idle_gpu,
        larger_batch_for_loop,
        less_arithmetic,
        cores_that_others_have,
    )
}
"""In the order in which they are tried and shown. Each change is advised once."""


def advise(at: Situation) -> tuple[Advice, ...]:
    suggested = ((name, rule(at)) for name, rule in RULES.items())
    found: list[Advice] = []
    seen: list[Mapping[str, Any]] = []
    for name, suggestion in suggested:
        if suggestion is None or not _is_possible(suggestion, at):
            continue
        phase, because, changes, hint = suggestion
        if changes and changes in seen:
            continue
        seen.append(changes)
        shown = tuple(
            Change(field=field, before=_shown(attrgetter(field)(at.recipe)), after=_shown(value))
            for field, value in changes.items()
        )
        found.append(Advice(rule=name, phase=phase, because=because, changes=shown, hint=hint))
    return tuple(found)


def _is_possible(suggested: Suggestion, at: Situation) -> bool:
    if not suggested.changes:
        return True
    try:
        recipe = changed(at.recipe, suggested.changes)
    except ConfigError:
        return False
    device, count = at.device, at.num_devices
    return not_applicable(recipe, at.recipe, device=device, num_devices=count) is None


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Returns the recipe with other values. Raises: ConfigError if it refuses them."""
    update: dict[str, Any] = {}
    for field, value in changes.items():
        name, _, below = field.partition(".")
        if below:
            value = getattr(recipe, name).model_copy(update={below: value})
        update[name] = value
    tree = recipe.model_copy(update=update).model_dump(mode="json")
    try:
        return Recipe.model_validate(tree)
    # Pydantic's own, whose text is for those who read files.
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _shown(value: Any) -> str:
    for name, kind in LOADERS.items():
        if type(value) is kind:
            return name
    return str(value).lower() if isinstance(value, bool) else str(value)


def _larger_batches(at: Situation, phase: str, because: str) -> Suggestion:
    """Returns twice the micro-batch, at the same effective batch size where that is possible."""
    if at.found.accumulation_steps % 2:
        return _doubled(at, "batch_size", phase, because)
    halved = at.found.accumulation_steps // 2
    changes = {"batch_size": 2 * at.found.batch_size, "accumulation_steps": halved}
    return Suggestion(phase, because, changes)


def _doubled(at: Situation, field: str, phase: str, because: str) -> Suggestion:
    hint = "the effective batch doubles: tune the learning rate again"
    return Suggestion(phase, because, {field: 2 * getattr(at.found, field)}, hint)

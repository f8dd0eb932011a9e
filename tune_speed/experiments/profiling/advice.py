"""What to change about a recipe, read from where its time goes: rules in order, by phase.

Shares are those of the sum of the phases. Nothing is advised that `Recipe` refuses, or that has no
effect on this device. Advice is a guess from one measurement: the changed recipe is to be profiled,
and where it learns differently (another batch size) to be trained again.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from tune_speed.core.errors import ConfigError
from tune_speed.data import LOADERS
from tune_speed.data.loaders.configs import Resident, Streaming
from tune_speed.experiments.profiling.result import Advice, Change, ProfileResult
from tune_speed.training.recipe import Recipe, not_applicable

# A phase that takes the share s of a step can at most make it 1 / (1 - s) times as quick: a
# threshold is where its change begins to be worth a try.
DATA_SHARE = 0.10
COMPUTE_SHARE = 0.40
"""Of forward and backward together."""
OPTIMIZER_SHARE = 0.20
# How many times as quick a matrix product in another precision must be.
FASTER_ARITHMETIC = 1.3
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
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def has_room(self) -> bool:
        return self.found.peak_memory_gib < ROOM * self.found.memory_limit_gib


class Suggestion(NamedTuple):
    """What a rule suggests, before it is checked."""

    rule: str
    phase: str
    because: str
    changes: Mapping[str, Any] = {}
    """Values by field; those of a loader by `loader.FIELD`."""
    hint: str = ""


Suggestions = Iterator[Suggestion]


def _for_data(at: Situation) -> Suggestions:
    loader, wait, copy = at.recipe.loader, at.share("data_wait"), at.share("host_to_device")
    if not isinstance(loader, Streaming):
        if wait >= DATA_SHARE and at.is_gpu and isinstance(loader, Resident) and at.has_room:
            yield _larger_batches(
                at, "larger_batch_for_data", "data_wait", f"making batches {wait:.0%}"
            )
        return
    assert loader.workers != "auto", "auto is resolved before profiling"
    more = max(1, 2 * loader.workers)
    if wait >= DATA_SHARE and more <= loader.workers + at.spare_cores:
        because = f"waiting for data {wait:.0%}"
        yield Suggestion("more_workers", "data_wait", because, {"loader.workers": more})
    limit_bytes = at.found.memory_limit_gib * 1024**3
    if wait + copy >= DATA_SHARE and at.set_bytes < RESIDENT_ROOM * limit_bytes:
        because = f"waiting for data and its copies {wait + copy:.0%}"
        hint = f"the whole set, {at.set_bytes / 1024**2:,.0f} MiB, is then on the device"
        whole = {"loader": Resident()}
        yield Suggestion("whole_set_on_device", "data_wait", because, whole, hint)
    if copy >= 0.05 and not loader.pin_memory:
        because = f"copying from the host {copy:.0%}"
        pinned = {"loader.pin_memory": True}
        yield Suggestion("page_locked_copies", "host_to_device", because, pinned)


def _for_arithmetic(at: Situation) -> Suggestions:
    recipe, times = at.recipe, at.found.times
    if at.is_gpu and (times.launch_frac or 0.0) >= 0.80 and not recipe.cuda_graph:
        launching = f"busy launching {times.launch_frac:.0%} of the step"
        because = f"the GPU waits for its host, which is {launching}"
        yield Suggestion("recorded_steps", "forward", because, {"cuda_graph": True})
    share = at.share("forward", "backward", "forward_backward")
    if share >= COMPUTE_SHARE:
        yield from _for_forward(at, f"forward and backward {share:.0%}")
    ratio = times.backward_ms / times.forward_ms if times.forward_ms else 0.0
    # About 2 is what its operations make.
    if at.is_gpu and recipe.deterministic and ratio >= 2.6:
        because = f"backward takes {ratio:.1f} times as long as forward"
        hint = "a seed then no longer gives the same run twice"
        changes = {"deterministic": False}
        yield Suggestion("free_choice_of_kernels", "backward", because, changes, hint)


def _for_forward(at: Situation, because: str) -> Suggestions:
    recipe, bounds, rates = at.recipe, at.found.bounds, at.found.rates.matrix_tflop_per_s
    other = {"fp32": "bf16", "bf16": "fp32"}.get(recipe.precision, "")
    own_rate, other_rate = rates.get(recipe.precision, 0.0), rates.get(other, 0.0)
    if own_rate and other_rate >= FASTER_ARITHMETIC * own_rate:
        quicker = f"matrix products in {other} are {other_rate / own_rate:.1f} times as quick"
        hint = "the accuracy may change" if other == "bf16" else ""
        changes = {"precision": other}
        yield Suggestion("faster_arithmetic", "forward", f"{because}, and {quicker}", changes, hint)
    if not recipe.channels_last and at.has_convolutions:
        nchw = f"{because}, with convolutions in NCHW"
        yield Suggestion("convolutions_in_channels_last", "forward", nchw, {"channels_last": True})
    # On a CPU it needs a C++ compiler, which is not looked for.
    if at.is_gpu and bounds is not None and bounds.peak_frac < 0.30 and not recipe.compile:
        slow = f"{because} at {bounds.peak_frac:.0%} of the matrix rate"
        hint = "pays where a run is longer than compiling"
        yield Suggestion("compiled_network", "forward", slow, {"compile": True}, hint)


def _for_updates(at: Situation) -> Suggestions:
    share, sync = at.share("optimizer"), at.share("sync")
    if share >= OPTIMIZER_SHARE:
        because = f"optimizer {share:.0%}"
        if at.recipe.optimizer_kernels != "fused":
            changes = {"optimizer_kernels": "fused"}
            yield Suggestion("fused_update", "optimizer", because, changes)
        field = "batch_size" if at.has_room else "accumulation_steps"
        yield _doubled(at, "fewer_updates", field, "optimizer", because)
    if at.recipe.devices > 1 and sync >= 0.15:
        because = f"averaging gradients {sync:.0%}"
        yield _doubled(at, "fewer_averagings", "accumulation_steps", "sync", because)


def _for_the_rest(at: Situation) -> Suggestions:
    loop, bounds = at.share("loop"), at.found.bounds
    # Of a step as it runs.
    idle = (at.found.times.idle_ms or 0.0) / at.found.times.step_ms
    if at.is_gpu and idle >= 0.30 and at.has_room:
        because = f"the GPU does nothing for {idle:.0%} of a step"
        yield _larger_batches(at, "larger_batch_for_idle_gpu", "idle", because)
    if loop >= 0.10 and at.has_room:
        because = f"the loop's own bookkeeping {loop:.0%}"
        yield _larger_batches(at, "larger_batch_for_loop", "loop", because)
    if bounds is not None and bounds.peak_frac >= 0.60:
        because = f"computing at {bounds.peak_frac:.0%} of what matrix products reach here"
        hint = (
            "only less arithmetic helps: a smaller network, smaller images"
            " (`speedups.resolution`), fewer steps"
        )
        yield Suggestion("less_arithmetic", "forward", because, hint=hint)
    if at.device.type == "cpu" and idle >= 0.10:
        because = f"threads wait for a core {idle:.0%} of a step"
        hint = "others compute on this machine, or `run.cpu_threads` is more than its cores"
        yield Suggestion("cores_that_others_have", "idle", because, hint=hint)


def advise(at: Situation) -> tuple[Advice, ...]:
    found: dict[str, Advice] = {}
    for rules in (_for_data, _for_arithmetic, _for_updates, _for_the_rest):
        for rule, phase, because, changes, hint in rules(at):
            shown = tuple(
                Change(field=field, before=_shown(attrgetter(field)(at.recipe)), after=_shown(to))
                for field, to in changes.items()
            )
            # Each change is advised once.
            key = str(shown) if shown else rule
            if key not in found and _is_possible(at, changes):
                found[key] = Advice(
                    rule=rule, phase=phase, because=because, changes=shown, hint=hint
                )
    return tuple(found.values())


def _is_possible(at: Situation, changes: Mapping[str, Any]) -> bool:
    try:
        recipe = changed(at.recipe, changes) if changes else at.recipe
    except ConfigError:
        return False
    device, count = at.device, at.num_devices
    return not changes or (
        not_applicable(recipe, at.recipe, device=device, num_devices=count) is None
    )


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


def _larger_batches(at: Situation, rule: str, phase: str, because: str) -> Suggestion:
    """Returns twice the micro-batch, at the same effective batch size where that is possible."""
    if at.found.accumulation_steps % 2:
        return _doubled(at, rule, "batch_size", phase, because)
    halved = at.found.accumulation_steps // 2
    changes = {"batch_size": 2 * at.found.batch_size, "accumulation_steps": halved}
    return Suggestion(rule, phase, because, changes)


def _doubled(at: Situation, rule: str, field: str, phase: str, because: str) -> Suggestion:
    hint = "the effective batch doubles: tune the learning rate again"
    return Suggestion(rule, phase, because, {field: 2 * getattr(at.found, field)}, hint)

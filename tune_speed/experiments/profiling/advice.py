"""What to change about a recipe: four rules, each decided on shares of a step.

| rule         | figure                                                            | threshold        |
|--------------|-------------------------------------------------------------------|------------------|
| `data`       | waiting for batches and making images, of the phases' sum          | `DATA_SHARE`     |
| `launches`   | the device computes nothing though a batch is there, of a step     | `IDLE_SHARE`     |
| `arithmetic` | forward and backward, where a step is bound by arithmetic          | `COMPUTE_SHARE`  |
| `memory`     | phases that are bound by memory, images left out, of the sum       | `MEMORY_SHARE`   |

A rule advises the first of its changes that `Recipe` accepts and that has an effect on this device.
Advice is a guess from one measurement: the changed recipe is to be profiled, and where it learns
differently (another batch size) to be trained again.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from tune_speed.core.errors import ConfigError
from tune_speed.data import LOADERS
from tune_speed.data.loaders.configs import Resident, Streaming
from tune_speed.experiments.profiling.result import Advice, Change, Phase, ProfileResult
from tune_speed.training.recipe import Recipe, not_applicable

# A phase that takes the share s of a step can at most make it 1 / (1 - s) times as quick: a
# threshold is where its change begins to be worth a try.
DATA_SHARE = 0.10
IDLE_SHARE = 0.20
COMPUTE_SHARE = 0.40
MEMORY_SHARE = 0.20
# How many times as quick a matrix product in another precision must be.
FASTER_ARITHMETIC = 1.3
# Share of the memory limit in use up to which a batch twice as large is expected to fit.
ROOM = 0.45
# Share of the memory limit that the whole set may take up on the device.
RESIDENT_ROOM = 0.25
LEARNS = "the effective batch doubles: tune the learning rate again"


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

    def share(self, *phases: Phase) -> float:
        """Returns the share of these phases in the sum of all, in [0, 1]."""
        times = self.found.times
        return sum(getattr(times, f"{phase}_ms") for phase in phases) / times.profiled_step_ms


class Option(NamedTuple):
    """A change that a rule knows."""

    changes: Mapping[str, Any]
    """Values by field; those of a loader by `loader.FIELD`. None: only the hint."""
    hint: str = ""


class Finding(NamedTuple):
    """A rule whose figure is beyond its threshold."""

    because: str
    options: Iterator[Option]


def _data(at: Situation) -> Finding | None:
    wait, images = at.share("data_wait"), at.share("images")
    if wait + images < DATA_SHARE:
        return None
    because = f"waiting for batches takes {wait:.0%} of a step and making images {images:.0%}"

    def options() -> Iterator[Option]:
        loader, limit_bytes = at.recipe.loader, at.found.memory_limit_gib * 1024**3
        if isinstance(loader, Streaming) and wait >= images:
            if at.set_bytes < RESIDENT_ROOM * limit_bytes:
                hint = f"the whole set, {at.set_bytes / 1024**2:,.0f} MiB, is then on the device"
                yield Option({"loader": Resident()}, hint)
            assert loader.workers != "auto", "auto is resolved before profiling"
            more = max(1, 2 * loader.workers)
            if more <= loader.workers + at.spare_cores:
                yield Option({"loader.workers": more})
        yield Option({}, "fewer or cheaper changes in `augmentation`, or a smaller `image_size`")

    return Finding(because, options())


def _launches(at: Situation) -> Finding | None:
    times = at.found.times
    idle = (times.idle_ms or 0.0) / times.step_ms - at.share("data_wait")
    if idle < IDLE_SHARE:
        return None
    because = (
        f"the device computes nothing for {idle:.0%} of a step, while its host launches"
        f" {times.num_launches:,.0f} operations"
    )

    def options() -> Iterator[Option]:
        yield Option({"cuda_graph": True})
        yield from _larger_batches(at)
        if at.device.type == "cuda":
            yield Option({"compile": True}, "pays where a run is longer than compiling")

    return Finding(because, options())


def _arithmetic(at: Situation) -> Finding | None:
    share, bounds = at.share("forward", "backward", "forward_backward"), at.found.bounds
    if share < COMPUTE_SHARE or bounds is None or bounds.binding == "memory":
        return None
    peak = f"{bounds.peak_frac:.0%} of the measured peak of matrix products"
    because = f"forward and backward take {share:.0%} of a step, which reaches {peak}"

    def options() -> Iterator[Option]:
        rates = at.found.rates.matrix_tflop_per_s
        own = at.recipe.precision
        other = {"fp32": "bf16", "bf16": "fp32"}.get(own, own)
        ratio = rates.get(other, 0.0) / rates[own]
        if ratio >= FASTER_ARITHMETIC:
            hint = f"products in {other} are {ratio:.1f} times as quick; the accuracy may change"
            yield Option({"precision": other}, hint)
        yield Option({"channels_last": True})
        if bounds.peak_frac >= 0.5:
            smaller = "a smaller `model` or `image_size`, or `speedups.resolution`"
            yield Option({}, f"only less arithmetic helps: {smaller}")
        if at.recipe.deterministic and at.device.type == "cuda":
            hint = "a seed then no longer gives the same run twice"
            yield Option({"deterministic": False}, hint)
        # On a CPU it needs a C++ compiler, which is not looked for.
        if at.device.type == "cuda":
            yield Option({"compile": True}, "pays where a run is longer than compiling")

    return Finding(because, options())


def _memory(at: Situation) -> Finding | None:
    bounds = at.found.phase_bounds
    moving = [p for p in bounds if bounds[p].binding == "memory" and p != "images"]
    share, update = at.share(*moving), at.share("optimizer")
    if share < MEMORY_SHARE:
        return None
    because = f"phases that memory bounds ({', '.join(moving)}) take {share:.0%} of a step"

    def options() -> Iterator[Option]:
        if 2 * update >= share:
            yield Option({"optimizer_kernels": "fused"})
            yield from _larger_batches(at, keeps_effective=False)
            yield Option({"accumulation_steps": 2 * at.found.accumulation_steps}, LEARNS)
            return
        yield Option({"channels_last": True})
        yield Option({"precision": "bf16"}, "half the bytes; the accuracy may change")
        if at.device.type == "cuda":
            yield Option({"compile": True}, "fused operations move less")

    return Finding(because, options())


def _larger_batches(at: Situation, *, keeps_effective: bool = True) -> Iterator[Option]:
    """Yields twice the micro-batch, at the same effective batch size where that is possible."""
    found = at.found
    if found.peak_memory_gib >= ROOM * found.memory_limit_gib:
        return
    doubled, halved = 2 * found.batch_size, found.accumulation_steps // 2
    if keeps_effective and found.accumulation_steps % 2 == 0:
        yield Option({"batch_size": doubled, "accumulation_steps": halved})
    yield Option({"batch_size": doubled}, LEARNS)


RULES = {"data": _data, "launches": _launches, "arithmetic": _arithmetic, "memory": _memory}


def advise(at: Situation) -> tuple[Advice, ...]:
    """Returns at most one piece of advice a rule; each change is advised once."""
    found, seen = list[Advice](), set[str]()
    for rule, look in RULES.items():
        finding = look(at)
        for changes, hint in finding.options if finding else ():
            if str(changes) not in seen and _is_possible(at, changes):
                seen.add(str(changes))
                shown = tuple(
                    Change(field=field, before=_shown(attrgetter(field)(at.recipe)), after=_shown(to))
                    for field, to in changes.items()
                )
                found.append(Advice(rule=rule, because=finding.because, changes=shown, hint=hint))
                break
    return tuple(found)


def _is_possible(at: Situation, changes: Mapping[str, Any]) -> bool:
    if not changes:
        return True
    try:
        recipe = changed(at.recipe, changes)
    except ConfigError:
        return False
    device, count = at.device, at.num_devices
    is_new = recipe != at.recipe
    return is_new and not_applicable(recipe, at.recipe, device=device, num_devices=count) is None


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

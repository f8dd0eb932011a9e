"""What to change about a recipe: four rules, each decided on shares of a step.

| rule         | figure                                                        | threshold       |
|--------------|---------------------------------------------------------------|-----------------|
| `data`       | waiting for batches and making images                         | `DATA_SHARE`    |
| `launches`   | the device computes nothing though a batch is there           | `IDLE_SHARE`    |
| `arithmetic` | forward and backward of a step that is bound by arithmetic    | `COMPUTE_SHARE` |
| `memory`     | phases after the images that are bound by memory              | `MEMORY_SHARE`  |

A rule advises the first of its changes that `Recipe` accepts and that has an effect on this device.
"""

import math
from collections.abc import Callable, Iterator, Mapping
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
DATA_SHARE, IDLE_SHARE, COMPUTE_SHARE, MEMORY_SHARE = 0.10, 0.20, 0.40, 0.20
# How many times as quick a matrix product in another precision must be.
FASTER_ARITHMETIC = 1.3
# Share of the memory limit in use up to which a batch twice as large is expected to fit.
ROOM = 0.45
# Share of the memory limit that the whole set may take up on the device.
RESIDENT_ROOM = 0.25
NEAR_PEAK = 0.5
"""Share of the measured peak from which on quicker kernels are not looked for."""

Option = tuple[Mapping[str, Any], str]
"""Values by field, those of a loader by `loader.FIELD`; and a hint, which is all without any."""
Finding = tuple[float, float, str, list[Option]]
"""A rule's figure, its threshold, the figure in words, and what may be changed."""


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
        together_ms = math.fsum(getattr(times, f"{phase}_ms") for phase in phases)
        return together_ms / times.profiled_step_ms

    def larger_batches(self) -> Iterator[Option]:
        found, double = self.found, {"batch_size": 2 * self.found.batch_size}
        if found.peak_memory_gib < ROOM * found.memory_limit_gib:
            if found.accumulation_steps % 2 == 0:
                yield {**double, "accumulation_steps": found.accumulation_steps // 2}, ""
            yield double, "the effective batch doubles: tune the learning rate again"

    def compiled(self) -> Iterator[Option]:
        # On a CPU it needs a C++ compiler, which is not looked for.
        if self.device.type == "cuda":
            yield {"compile": True}, "pays where a run is longer than compiling"


def _data(at: Situation) -> Finding:
    wait, images, options = at.share("data_wait"), at.share("images"), list[Option]()
    loader = at.recipe.loader
    if isinstance(loader, Streaming) and wait >= images:
        assert loader.workers != "auto", "auto is resolved before profiling"
        more = max(1, 2 * loader.workers)
        if at.set_bytes < RESIDENT_ROOM * at.found.memory_limit_gib * 1024**3:
            hint = f"the whole set, {at.set_bytes / 1024**2:,.0f} MiB, is then on the device"
            options.append(({"loader": Resident()}, hint))
        if more <= loader.workers + at.spare_cores:
            options.append(({"loader.workers": more}, ""))
    options.append(({}, "fewer or cheaper changes in `augmentation`, or a smaller `image_size`"))
    because = f"waiting for batches takes {wait:.0%} of a step, and making images {images:.0%}"
    return wait + images, DATA_SHARE, because, options


def _launches(at: Situation) -> Finding:
    times = at.found.times
    idle = (times.idle_ms or 0.0) / times.step_ms - at.share("data_wait")
    because = (
        f"the device computes nothing for {idle:.0%} of a step, while its host launches"
        f" {times.num_launches:,.0f} operations"
    )
    options = [({"cuda_graph": True}, ""), *at.larger_batches(), *at.compiled()]
    return idle, IDLE_SHARE, because, options


def _arithmetic(at: Situation) -> Finding:
    bounds, rates, own = at.found.bounds, at.found.rates.matrix_tflop_per_s, at.recipe.precision
    share = at.share("forward", "backward", "forward_backward")
    if bounds is None or bounds.binding == "memory":
        return 0.0, COMPUTE_SHARE, "", []
    peak, options = bounds.peak_frac, list[Option]()
    other = {"fp32": "bf16", "bf16": "fp32"}.get(own, own)
    quicker = rates.get(other, 0.0) / rates[own]
    if quicker >= FASTER_ARITHMETIC:
        hint = f"products in {other} are {quicker:.1f} times as quick; the accuracy may change"
        options.append(({"precision": other}, hint))
    options.append(({"channels_last": True}, ""))
    if peak < NEAR_PEAK:
        options += at.compiled()
    else:
        smaller = "a smaller `model` or `image_size`, `speedups.resolution`"
        options.append(({}, f"only less arithmetic helps: {smaller}"))
    because = f"forward and backward take {share:.0%} of a step, at {peak:.0%} of the measured peak"
    return share, COMPUTE_SHARE, because, options


def _memory(at: Situation) -> Finding:
    bounds, update = at.found.phase_bounds, at.share("optimizer")
    moving = [p for p in bounds if bounds[p].binding == "memory" and p != "images"]
    share, num_steps = at.share(*moving), 2 * at.found.accumulation_steps
    options: list[Option] = [
        ({"channels_last": True}, ""),
        *at.compiled(),
        ({"precision": "bf16"}, "half the bytes; the accuracy may change"),
    ]
    if 2 * update >= share:
        fewer = ({"accumulation_steps": num_steps}, "fewer updates: tune the learning rate again")
        options = [({"optimizer_kernels": "fused"}, ""), fewer]
    because = f"what memory binds takes {share:.0%} of a step ({', '.join(moving)})"
    return share, MEMORY_SHARE, because, options


RULES: dict[str, Callable[[Situation], Finding]] = {
    "data": _data, "launches": _launches, "arithmetic": _arithmetic, "memory": _memory
}  # fmt: skip


def advise(at: Situation) -> tuple[Advice, ...]:
    """Returns at most one piece of advice a rule; each change is advised once."""
    found = dict[str, Advice]()
    for rule, look in RULES.items():
        figure, threshold, because, options = look(at)
        for changes, hint in options if figure >= threshold else ():
            shown = tuple(
                Change(field=field, before=_shown(attrgetter(field)(at.recipe)), after=_shown(to))
                for field, to in changes.items()
            )
            key = str(shown) if shown else rule
            if key not in found and _is_possible(at, changes):
                found[key] = Advice(rule=rule, because=because, changes=shown, hint=hint)
                break
    return tuple(found.values())


def _is_possible(at: Situation, changes: Mapping[str, Any]) -> bool:
    try:
        recipe = changed(at.recipe, changes)
    except ConfigError:
        return False
    device, count = at.device, at.num_devices
    is_new = not changes or recipe != at.recipe
    return is_new and not_applicable(recipe, at.recipe, device=device, num_devices=count) is None


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Returns the recipe with other values. Raises: ConfigError if it refuses them."""
    update: dict[str, Any] = {}
    for field, value in changes.items():
        name, _, below = field.partition(".")
        update[name] = getattr(recipe, name).model_copy(update={below: value}) if below else value
    try:
        return Recipe.model_validate(recipe.model_copy(update=update).model_dump(mode="json"))
    # Pydantic's own, whose text is for those who read files.
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _shown(value: Any) -> str:
    names = [name for name, kind in LOADERS.items() if type(value) is kind]
    return names[0] if names else str(value).lower() if isinstance(value, bool) else str(value)

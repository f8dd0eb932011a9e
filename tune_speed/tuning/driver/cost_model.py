"""Predicted cost of a configuration: the time before the first step, and steps · step time.

The steps are known beforehand. The step time belongs to the *throughput key*, all searched values
that change a step's speed, and is known when the first trial with that key ends. In the key are the
arithmetic of a sample (model, speed-ups), of an update (optimizer but for its `untimed_fields`,
clipping), the samples of a step and how they are cut, which kernels run, and making a batch, which
is on the training clock. Rates, schedule and length change what is learned, not how fast; of decay,
momentum and label smoothing it matters whether there is any, of momentum whether the schedule gives
any, too.

Every bound errs towards letting a trial run: contention and warm-up only slow a step, so the
shortest measured step time counts. A key that never ran has a lower bound, and a most likely step
time from a regression of log step time on the samples of a step and the values of the key.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from scipy.optimize import nnls

from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.optim.base import MOMENTA, OptimizerConfig, momenta
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.speedups.chosen import Speedups
from tune_speed.core.config import Component
from tune_speed.core.records import TrialRecord
from tune_speed.study.space import SearchSpace
from tune_speed.training.recipe import Recipe, steps_of_pass
from tune_speed.tuning.policy.base import Cost
from tune_speed.tuning.policy.curve import FloatArray

Key = tuple[Any, ...]
Step = tuple[float, int]
"""Time [s] and samples of an optimizer step."""
# Priors; standard deviations are of the step time's logarithm. It grows as the samples to the power
# of 0.8 ± 0.3, a value of the key changes it by ± 0.4, and ± 0.15 is due to nothing in the key.
GROWTH, GROWTH_SD = 0.8, 0.3
LEVEL_SD = 3.0
FACTOR_SD = 0.4
REST_SD = 0.15


class StepTimes:
    """Bayesian linear regression of log step times, over the keys that ran."""

    def __init__(self, seen: Mapping[Key, Step]) -> None:
        """Takes step time [s] and samples of each key; at least one."""
        self._columns: dict[tuple[int, Any], int] = {}
        for place in chain.from_iterable(map(enumerate, seen)):
            self._columns.setdefault(place, 2 + len(self._columns))
        times_s, samples = np.array(list(seen.values()), dtype=float).T
        rest = np.log(times_s) - GROWTH * np.log(samples)
        self._level = float(rest.mean())
        rows = np.array([self._row(key, n) for key, n in zip(seen, samples, strict=True)])
        precision = np.full(rows.shape[1], FACTOR_SD**-2)
        precision[:2] = LEVEL_SD**-2, GROWTH_SD**-2
        precisions = np.diag(precision) + rows.T @ rows / REST_SD**2
        moments = rows.T @ (rest - self._level) / REST_SD**2
        self._weights = np.asarray(np.linalg.solve(precisions, moments), dtype=float)

    def __call__(self, key: Key, samples: int) -> float:
        beyond = float(self._row(key, samples) @ self._weights)
        return math.exp(self._level + GROWTH * math.log(samples) + beyond)

    def _row(self, key: Key, samples: float) -> FloatArray:
        row = np.zeros(2 + len(self._columns))
        row[0], row[1] = 1.0, math.log(samples)
        row[[self._columns[place] for place in enumerate(key) if place in self._columns]] = 1.0
        return row


INIT = ("speedups.init", "order")
WORK = ("epochs", "part", "train_samples", "images", "scoring_epochs")
"""Numbers to which the time of a short training before the first step is proportional."""
UPDATE: dict[str, Mapping[str, type[Any]]] = {"optimizer": OPTIMIZERS, "lr_schedule": SCHEDULES}
# Fields of a recipe that are in the key with all that lies below them.
WHOLE = ("model", "augmentation", "loader", "speedups", "freeze")
SIZES = ("batch_size", "accumulation_steps", "effective_batch_size", "devices")
KERNELS = ("precision", "matmul_precision", "channels_last", "optimizer_kernels", "deterministic")
COMPILED = ("compile", "compile_mode", "cuda_graph", "activation_checkpointing")
OWN = ("optimizer", *SIZES, *KERNELS, *COMPILED)
"""Fields that are in the key themselves."""
SamplesOf = Callable[[Mapping[str, Any]], int]
"""Returns the samples of a configuration's step."""
Growth = tuple[tuple[float, int], ...]
"""Stages of the batch size: share of the run's samples, factor."""
# Factor on a step time from another key, for a lower bound: few keys differ by more.
OPTIMISM = 0.5


class InitTimes:
    """Times before the first step: they depend on how weights and order are made, and on steps."""

    def __init__(self, names: Sequence[str], timed: Sequence[str], samples_of: SamplesOf) -> None:
        """Takes the names of all searched parameters, and those on which a step's time depends."""
        self._samples_of = samples_of
        roots = ("speedups", "order")
        self._names = tuple(n for n in names if n in timed or n.split(".")[0] in roots)
        self._work_names = tuple(
            n for n in names if n.startswith(INIT) and n.split(".")[-1] in WORK
        )
        self._seen: dict[Key, tuple[Key, float, float]] = {}
        """How weights and order are made, what work that is, and the shortest time before the first
        step [s], by all settings that it depends on; of trials that spent any."""
        self._fits: dict[Key, tuple[float, float]] = {}

    def __call__(self, params: Mapping[str, Any], *, step_s: float) -> tuple[float, float]:
        """Returns least and most likely time [s]; 0 until a trial had any."""
        if not self._seen:
            return 0.0, 0.0
        key, way = self._keys(params)
        if key in self._seen:
            return self._seen[key][2], self._seen[key][2]
        if way not in self._fits:
            self._fits[way] = self._fit(way)
        constant, slope = self._fits[way]
        likely_s = constant + slope * self._work(params, step_s)
        return OPTIMISM * likely_s, likely_s

    def learn(self, params: Mapping[str, Any], init_s: float, *, step_s: float) -> None:
        """Stores a time before the first step [s], the shortest of its key."""
        key, way = self._keys(params)
        if key in self._seen:
            init_s = min(init_s, self._seen[key][2])
        self._seen[key] = way, self._work(params, step_s), init_s
        self._fits.clear()

    def _fit(self, way: Key) -> tuple[float, float]:
        """Returns a constant [s] and a factor of the work, neither below 0, by least squares."""
        alike = [known[1:] for known in self._seen.values() if known[0] == way]
        if not alike:
            return 0.0, 0.0
        works, times_s = np.array(alike).T
        columns = np.stack([works / works.mean(), np.ones(len(works))], axis=1)
        slope, constant = nnls(columns, times_s)[0]
        return float(constant), float(slope / works.mean())

    def _keys(self, params: Mapping[str, Any]) -> tuple[Key, Key]:
        values = [(name, params.get(name)) for name in self._names]
        # Of numbers only those of `_work` matter.
        way = [v for name, v in values if name.startswith(INIT) and type(v) not in (int, float)]
        return tuple([value for _, value in values]), tuple(way)

    def _work(self, params: Mapping[str, Any], step_s: float) -> float:
        """Returns the passes before the first step, but for a factor, times a sample's time [s]."""
        passes: dict[str, float] = {}
        for name in self._work_names:
            kind = name.rpartition(".")[0]
            passes[kind] = passes.get(kind, 1.0) * (params.get(name) or 0)
        return (sum(passes.values()) or 1.0) * step_s / self._samples_of(params)


class CostModel:
    """From a configuration to its cost. One call takes a few microseconds."""

    def __init__(self, space: SearchSpace, *, num_train: int) -> None:
        """Knows steps at once, and times as trials finish; `num_train` are training samples."""
        names = [parameter.name for parameter in space.parameters]
        self._names = tuple(n for n in names if _is_timed(n))
        self._switches = frozenset(n for n in self._names if _is_switch(n))
        self._model = tuple(i for i, n in enumerate(self._names) if n.split(".")[0] == "model")
        self._space, self._num_train = space, num_train
        self._growth_names = tuple(n for n in names if n.startswith("speedups.batch_growth"))
        self._growths: dict[Key, Growth] = {}
        update = [p for p in space.parameters if p.name.split(".")[0] in UPDATE]
        self._momentum_names = [p.name for p in update if p.choices or "momentum" in p.name]
        self._momenta_of: dict[Key, Key] = {}
        self._fixed = {"accumulation_steps": 1, "devices": 1, **space.tree}
        self._init_times = InitTimes(names, timed=self._names, samples_of=self.samples_per_step)
        self._seen: dict[Key, Step] = {}
        """Shortest step time [s] and samples of a step of each key that ran."""
        self._carried: dict[Key, tuple[float, float]] = {}
        """Least and most likely step time [s] of keys that never ran; void when a trial finishes.
        """
        self._step_times: StepTimes | None = None

    def __call__(self, params: Mapping[str, Any]) -> Cost | None:
        """Returns the cost of going to the end; None before a trial of its model."""
        key, num_steps = self._key(params), self.steps(params)
        seen = self._seen.get(key)
        times_s = self._carried_over(key, params) if seen is None else (seen[0], seen[0])
        if times_s is None:
            return None
        least_s, likely_s = times_s
        least_init_s, likely_init_s = self._init_times(params, step_s=likely_s)
        guess_s = likely_init_s + num_steps * likely_s
        is_known = seen is not None and least_init_s == likely_init_s
        return Cost(least_init_s + num_steps * least_s, num_steps, None if is_known else guess_s)

    def steps(self, params: Mapping[str, Any]) -> int:
        fields = {**self._fixed, **params}
        epochs, drop_last = float(fields["epochs"]), fields.get("drop_last", False)
        samples, num_train = self.samples_per_step(params), self._num_train
        return sum(
            max(1, round(share * epochs * steps_of_pass(num_train, size, drop_last=drop_last)))
            for share, factor in self._growth(params)
            for size in [factor * samples]
        )

    def _growth(self, params: Mapping[str, Any]) -> Growth:
        key = tuple(params.get(name) for name in self._growth_names)
        if key not in self._growths:
            tree = self._space.build(params) if self._growth_names else self._space.tree
            speedups = tree.get("speedups") or {}
            slot = {name: speedups[name] for name in ("batch_growth",) if name in speedups}
            self._growths[key] = Speedups.model_validate(slot).batch_growth.growth()
        return self._growths[key]

    def samples_per_step(self, params: Mapping[str, Any]) -> int:
        fields = {**self._fixed, **params}
        if fields.get("effective_batch_size") is not None:
            return int(fields["effective_batch_size"])
        per_device = fields["batch_size"] * fields["accumulation_steps"]
        return int(per_device * fields["devices"])

    def finished(self, record: TrialRecord) -> None:
        init_s, step_s = record.runs[-1].init_s, (record.runs[-1].step_time_ms or 0.0) / 1000
        if step_s <= 0:
            return
        if init_s > 0:
            self._init_times.learn(record.params, init_s, step_s=step_s)
        self.learn(record.params, step_s=step_s)

    def learn(self, params: Mapping[str, Any], *, step_s: float) -> None:
        """Stores a step time [s], the shortest of its key."""
        key, samples = self._key(params), self.samples_per_step(params)
        shortest_s = self._seen.get(key, (step_s, samples))[0]
        self._seen[key] = (min(step_s, shortest_s), samples)
        self._carried.clear()
        self._step_times = None

    def _key(self, params: Mapping[str, Any]) -> Key:
        values = ((name, params.get(name)) for name in self._names)
        switches = self._switches
        key = [(value and True) if name in switches else value for name, value in values]
        return (*key, self._momenta(params))

    def _momenta(self, params: Mapping[str, Any]) -> Key:
        values = [params.get(name) for name in self._momentum_names]
        way = tuple([bool(value) if type(value) is float else value for value in values])
        if way not in self._momenta_of:
            built = {"lr_schedule": "constant", **self._space.build(params)}
            optimizer, schedule = (
                # Not validated: what does not go together is for others to refuse.
                table[name].model_construct(**fields)
                for root, table in UPDATE.items()
                for name, fields in [Component(table).split(built[root])]
            )
            self._momenta_of[way] = tuple(momenta(optimizer, schedule).items())
        return self._momenta_of[way]

    def _carried_over(self, key: Key, params: Mapping[str, Any]) -> tuple[float, float] | None:
        """Returns least and most likely step time [s] of a key that never ran, or None."""
        if key not in self._carried:
            samples = self.samples_per_step(params)
            nearest = self._nearest(key, samples)
            if nearest is None:
                return None
            step_s, their_samples = nearest
            # Fewer samples cost at best as much less. More of them may cost nothing more, as long
            # as a step is bound by the launch of its kernels.
            least_s = OPTIMISM * step_s * min(1.0, samples / their_samples)
            # By the bound alone, a key that never ran would always look cheaper than one that did:
            # in a real search slow kinds looked six times cheaper, and were tried first.
            self._step_times = self._step_times or StepTimes(self._seen)
            self._carried[key] = least_s, max(least_s, self._step_times(key, samples))
        return self._carried[key]

    def _nearest(self, key: Key, samples: int) -> Step | None:

        def distance(other: Key) -> tuple[int, float, float]:
            step_s, their_samples = self._seen[other]
            num_other = sum(ours != theirs for ours, theirs in zip(key, other, strict=True))
            ratio = max(samples, their_samples) / min(samples, their_samples)
            return num_other, ratio, step_s

        same_model = [o for o in self._seen if all(key[i] == o[i] for i in self._model)]
        nearest = min(same_model, key=distance, default=None)
        return None if nearest is None else self._seen[nearest]


def _is_timed(name: str) -> bool:
    root, *path = name.split(".")
    if root == "optimizer" and path:
        kind = OPTIMIZERS.get(path[0], OptimizerConfig)
        return path[1] not in kind.untimed_fields | (kind.switch_fields & {*MOMENTA})
    return root in WHOLE or name in OWN or _is_switch(name)


def _is_switch(name: str) -> bool:
    """Returns whether of the setting at a dotted path it matters only if it is 0 or null."""
    root, *path = name.split(".")
    if root == "optimizer" and path:
        return path[1] in OPTIMIZERS.get(path[0], OptimizerConfig).switch_fields
    return name in Recipe.switch_fields

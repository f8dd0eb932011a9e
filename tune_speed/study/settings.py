"""How a study is searched, certified and run; not what is searched."""

import math
import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from tune_speed.core.config import Config, did_you_mean
from tune_speed.core.prices import Prices
from tune_speed.runtime.turnstile import PATIENCE_S
from tune_speed.study.parameter import Scalar

_PART = r"(?:([0-9]+(?:\.[0-9]+)?){})?"
_DURATION = re.compile("".join(_PART.format(unit) for unit in "dhms"))
_UNIT_S = (86_400, 3_600, 60, 1)


def parse_duration_s(duration: str | float) -> float:
    """Returns the seconds of a duration. Raises: ValueError unless it is finite and above 0."""
    if isinstance(duration, str):
        parts = _DURATION.fullmatch(duration.replace(" ", ""))
        # Every part is optional, so the pattern fits an empty text too: its 0 s are refused below.
        numbers = parts.groups(default="0") if parts else ()
        duration_s = sum(float(n) * unit_s for n, unit_s in zip(numbers, _UNIT_S, strict=False))
    else:
        duration_s = float(duration)
    if not 0 < duration_s < math.inf:
        raise ValueError("must be a duration above 0, such as `90s`, `30m`, `1h30m` or seconds")
    return duration_s


PolicyName = Literal["time_to_target", "vanilla", "random"]
SamplerName = Literal["gain", "tpe", "gp", "cmaes", "nsga2", "qmc", "random", "grid"]
DesignName = Literal["one-at-a-time", "leave-one-out", "factorial", "stacking", "cumulative"]
# Endings of journal files, so that a stranger's study cannot append to any file.
JOURNALS = (".journal", ".log", ".jsonl")
# Schemes of the databases that Optuna supports; a driver may follow a `+`.
DATABASES = ("postgresql", "mysql", "sqlite")


class ResourceConfig(Config):
    """What one trial gets of a node; with `recipe.devices`, each of its devices."""

    cpu: Annotated[float, Field(gt=0)] = 1
    """CPU cores; also the number of threads, rounded down, at least 1."""
    gpu: Annotated[float, Field(ge=0)] = 0
    """GPUs: a fraction shares one with other trials, 1 or more is a whole number."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Main memory [GiB] that is set aside, and on a CPU also what a trial's process may allocate
    beyond what it began with, before it is out of memory; null: none is counted, no limit."""
    device_type: Annotated[str, Field(min_length=1)] | None = None
    """Device that trials run on, as results name it, such as `NVIDIA H200`: times of different
    ones are not comparable. null: that of the first node which has room for a trial; on a cluster
    of several kinds, the kind with the most nodes."""
    price_per_hour: Prices = Field(default={})
    """What an hour of one whole device costs, by its type as results name it, such as
    `{NVIDIA H200: 3.5}`, in a currency of your choice; recorded with each trial. Other types have
    the price of your own file, if any."""

    @field_validator("gpu")
    @classmethod
    def _no_broken_gpus(cls, gpu: float) -> float:
        if gpu > 1 and gpu != int(gpu):
            raise ValueError("must be at most 1, or a whole number")
        return gpu

    @property
    def words(self) -> str:
        """Cores and GPUs for people: `2 CPU and 0.25 GPU`."""
        return f"{self.cpu:g} CPU{f' and {self.gpu:g} GPU' if self.gpu else ''}"

    def bundle(self) -> dict[str, float]:
        """Returns the resources as Ray names them; memory in bytes."""
        memory = (self.memory_gib or 0.0) * 2**30
        request = {"CPU": self.cpu, "GPU": self.gpu, "memory": memory}
        return {name: amount for name, amount in request.items() if amount}


class PriorFile(Config):
    """Finished trials from elsewhere."""

    file: Annotated[str, Field(min_length=1)]
    """A table (`.csv`, `.jsonl`, `.parquet`) with a row a run and a column a parameter, as MLflow,
    W&B and `tune-speed list trials` export them, or an Optuna storage: a journal file or a URL.
    Only ends of runs are learned, not their times; what is not searched is taken to be alike."""
    columns: dict[str, str] = Field(default={})
    """Names of columns, by what they are: a searched parameter, the target metric, `train_s` or
    `status`. What goes by its own name need not be said."""
    study: str | None = None
    """Which study of an Optuna storage; null: its only one."""

    @property
    def name(self) -> str:
        """What the ledger calls it."""
        return self.file if self.study is None else f"{self.file} {self.study}"


class UntilConfig(Config):
    """When a search ends before its budget is used up."""

    probability_of_better: Annotated[float, Field(gt=0, lt=1)]
    """Once the rest of the budget finds a better recipe with less than this probability."""
    better_by: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Share of the recommended recipe's expected time by which a better one is faster."""


class SearchConfig(Config):
    """How the space is searched."""

    trials: Annotated[int, Field(gt=0)] = 50
    """Trials to finish."""
    policy: PolicyName = "time_to_target"
    """Decides what to try next and when to stop a trial. The others are there to compare with:
    `vanilla` is Ray Tune's `OptunaSearch` and ASHA, `random` draws at random."""
    sampler: SamplerName = "gain"
    """Proposes configurations: `gain` is this project's own, the others are Optuna's. Only with
    `policy: time_to_target`; the other policies bring their own."""
    points_to_evaluate: list[dict[str, Scalar]] = Field(default=[])
    """Configurations to try first, in this order: mappings from the dotted name of a searched
    parameter to its value. What a mapping leaves out is the policy's choice. Those that are added
    before `--resume` are tried next."""
    warm_start: Literal["auto"] | list[Annotated[str, Field(min_length=1)] | PriorFile] = Field(
        default=[]
    )
    """Studies in MLflow, or files of other tools' trials, from whose finished trials the policy
    learns before its first proposal. They must have the same data, split and evaluation grid, and
    parameters that this space has; target, crossing mode, time limit and device may differ. Curves
    carry over: how far a trial stayed from this study's target is computed again. Times carry over
    only from the same device and torch version. No prior trial becomes the leader: its
    configuration is run again. `auto`: the twelve newest studies of the store; of those with other
    data and the same network, or with the same data and another split, the best recipes are tried
    first, as long as their trials agree with this study's."""
    storage: Annotated[str, Field(min_length=1)] | None = None
    """Where the sampler stores its trials, so that several searches of the same space and workload
    can learn from one another while they run: a database's URL (`postgresql://`, `mysql://` or
    `sqlite:///`), or the path of a journal file. null: in memory; resuming does not need it. A
    password in a URL is shown and recorded nowhere."""
    hold_back: Annotated[float, Field(ge=0, lt=1)] = 0.15
    """Share of the trials, or of the time budget, at the end of a search that tells its favourites
    apart: they are run again with other seeds. 0: none is held back. Only with
    `policy: time_to_target`."""
    until: UntilConfig | None = None
    """Ends the search before its budget is used up, once nothing better is likely to be found and,
    in `hold_back` of what it took, its favourites were told apart; null: never. Only with
    `policy: time_to_target`."""
    concurrent: Annotated[int, Field(gt=0)] | Literal["auto"] = 2
    """Trials that run at the same time, at most. `auto`: before the first trial it is measured with
    how many most trials an hour are finished. With `resources.gpu: 1`, as many share a GPU as is
    best, each with an equal part of its memory; a fraction bounds them and stays as it is."""
    time_budget: str | float | None = Field(default=None, union_mode="left_to_right")
    """The search ends after this long: `90s`, `30m`, `1h30m` or seconds; null: no limit. No trial
    starts then, and those that run are stopped between two steps, without an outcome. `--resume`
    continues them and has the whole budget again."""
    hang_after: str | float = Field(default="15m", union_mode="left_to_right")
    """A trial that takes no step and evaluates no batch for this long is ended as failed, with
    the stacks of its threads as its traceback. While it is set up, the begin and end of each phase
    count as well (data read, network built, compiled, warmed up, step time measured), every 1,000
    images that are decoded, and waiting for another process that decodes them. A process that is
    silent altogether is killed, and its trial begun again. Where no node has room for a trial for
    this long and none runs, the search ends."""
    attempts: Annotated[int, Field(gt=0)] = 3
    """Times that a trial is begun whose process dies before its checkpoint has got any further;
    after the last it is recorded as failed. Nodes that are lost are not counted, up to 20 times a
    trial; `--resume` counts from 0."""
    checkpoint_every: str | float | None = Field(default="60s", union_mode="left_to_right")
    """A running trial is saved at the first evaluation after this long, and resumes from there
    if its process, its node or the search ends before it; null: it starts from scratch."""
    storage_path: Annotated[str, Field(min_length=1)] | None = None
    """Where checkpoints of running trials are stored: a folder that all nodes see, or a URL that
    fsspec knows, such as `s3://bucket/folder`; null: the study's folder."""
    longest_pause: str | float = Field(default="10s", union_mode="left_to_right")
    """Trials that share a device pause this long at most while steps of another are timed that take
    more than a third of a second; for those of others two seconds at most. Half of it is about the
    longest step whose time can be isolated."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the proposals and of the trials."""
    resources: ResourceConfig = ResourceConfig()
    """What one trial gets."""

    @field_validator("longest_pause")
    @classmethod
    def _is_patient(cls, duration: str | float) -> str | float:
        if parse_duration_s(duration) < PATIENCE_S:
            raise ValueError(f"must be at least {PATIENCE_S:g}s, as any trial waits for so long")
        return duration

    @field_validator("time_budget", "hang_after", "checkpoint_every")
    @classmethod
    def _is_duration(cls, duration: str | float | None) -> str | float | None:
        if duration is not None:
            parse_duration_s(duration)
        return duration

    @field_validator("storage")
    @classmethod
    def _is_storage(cls, storage: str | None) -> str | None:
        scheme = storage.partition("://")[0] if storage and "://" in storage else None
        if storage is not None and scheme is None and not storage.endswith(JOURNALS):
            raise ValueError(f"must be a database's URL, or end in {', '.join(JOURNALS)}")
        if scheme is not None and scheme.partition("+")[0] not in DATABASES:
            raise ValueError(
                f"must be the path of a journal file, or begin with {'://, '.join(DATABASES)}://"
                + did_you_mean(scheme, DATABASES)
            )
        return storage

    @property
    def at_once(self) -> int:
        """Trials at the same time, at most; `auto` has been measured before."""
        assert isinstance(self.concurrent, int), "auto is measured before the first trial"
        return self.concurrent

    @property
    def time_budget_s(self) -> float | None:
        return None if self.time_budget is None else parse_duration_s(self.time_budget)

    @property
    def hang_after_s(self) -> float:
        return parse_duration_s(self.hang_after)

    @property
    def longest_pause_s(self) -> float:
        return parse_duration_s(self.longest_pause)

    @property
    def checkpoint_every_s(self) -> float | None:
        every = self.checkpoint_every
        return None if every is None else parse_duration_s(every)


class TrackingConfig(Config):
    """What is stored in MLflow other than measurements."""

    log_model: Literal["none", "best"] = "none"
    """`best`: when the search ends, or is stopped, the network of its fastest trial is logged on
    that trial's run, as it was evaluated last, and a slower one that an earlier session logged is
    deleted. It takes the windows that evaluation shows, as pixels, and gives logits;
    `mlflow.pytorch.load_model` loads it without a pickle. Trials that may be the fastest leave
    their weights in the study's folder: on another node this must be on shared storage. `none`: no
    network is stored."""


class CertifyConfig(Config):
    """How the best trials are run again before a result is called certified."""

    top: Annotated[int, Field(gt=0)] = 5
    """Trials to run again, the fastest first."""
    seeds: Annotated[int, Field(gt=0)] = 5
    """Fresh seeds of each; who is clearly out before has fewer."""
    final: Annotated[int, Field(ge=0)] = 2
    """How many of these reach the final; 0: there is none."""
    final_seeds: Annotated[int, Field(gt=0)] = 20
    """Fresh seeds of each in the final."""


class AblateConfig(Config):
    """What `tune-speed ablate` changes about a recipe, one way at a time or in combination."""

    axes: dict[str, Any]
    """What is changed: a field's dotted name and its other value, or a list of other values; or a
    name of your own and a mapping from names of levels to mappings from fields to values."""
    design: DesignName = "one-at-a-time"
    """Which combinations are run next to the base: each change alone (`one-at-a-time`), all and all
    but one (`leave-one-out`), all combinations (`factorial`), each alone and all (`stacking`), or
    one more each time (`cumulative`)."""
    seeds: Annotated[int, Field(gt=0)] = 5
    """Runs of each arm. Every arm runs once with each seed before the next seed's turn."""
    retune: Annotated[str, Field(min_length=1)] | None = None
    """A number of the recipe that is tuned again for each arm: `lr` or a field's dotted name; null:
    every arm has the base's, which may be stale for it."""
    retune_factors: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2)] = Field(
        default=[0.3, 1.0, 3.0]
    )
    """What the arm's value is multiplied by. Where the best lies at an end, up to two more follow
    beyond it."""
    retune_seeds: Annotated[int, Field(gt=0)] = 1
    """Runs of each arm with each factor, with seeds that the comparison does not use."""

    @field_validator("axes")
    @classmethod
    def _axes_have_form(cls, axes: dict[str, Any]) -> dict[str, Any]:
        if not axes:
            raise ValueError("must name a field at least")
        return axes

    @field_validator("retune_factors")
    @classmethod
    def _factors_are_distinct(cls, factors: list[float]) -> list[float]:
        if 1.0 not in factors or len(set(factors)) < len(factors):
            raise ValueError("must be different numbers, 1 among them")
        return sorted(factors)


class RunConfig(Config):
    """How a single training is run."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of weights, order and augmentation."""
    cpu_threads: Annotated[int, Field(gt=0)] | None = None
    """Threads of one operation on the CPU; null: one for each core."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:1`."""

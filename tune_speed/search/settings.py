"""How a study is searched, certified and run; not what is searched."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from tune_speed.config import Config
from tune_speed.search.duration import parse_duration_s


class ResourceConfig(Config):
    """What one trial gets of a node."""

    cpu: Annotated[float, Field(gt=0)] = 1
    """CPU cores; also the number of threads, rounded down, at least 1."""
    gpu: Annotated[float, Field(ge=0)] = 0
    """GPUs: a fraction shares one with other trials, 1 or more is a whole number."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Main memory [GiB] that is set aside, and on a CPU also what a trial's process may allocate
    beyond what it began with, before it is out of memory; null: none is counted, no limit."""

    @field_validator("gpu")
    @classmethod
    def _no_broken_gpus(cls, gpu: float) -> float:
        if gpu > 1 and gpu != int(gpu):
            raise ValueError("must be at most 1, or a whole number")
        return gpu


class SearchConfig(Config):
    """How the space is searched."""

    trials: Annotated[int, Field(gt=0)] = 50
    """Trials to finish."""
    policy: Literal["time_to_target"] = "time_to_target"
    """Decides what to try next and when to stop a trial."""
    sampler: Literal["tpe", "gp", "cmaes", "nsga2", "qmc", "random", "grid"] = "tpe"
    """Optuna's sampler that proposes configurations."""
    concurrent: Annotated[int, Field(gt=0)] = 2
    """Trials that run at the same time, at most."""
    time_budget: str | float | None = Field(default=None, union_mode="left_to_right")
    """No trial starts after this long: `90s`, `30m`, `1h30m` or seconds; null: no limit."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the proposals and of the trials."""
    resources: ResourceConfig = ResourceConfig()
    """What one trial gets."""

    @field_validator("time_budget")
    @classmethod
    def _is_duration(cls, budget: str | float | None) -> str | float | None:
        if budget is not None:
            parse_duration_s(budget)
        return budget

    @property
    def time_budget_s(self) -> float | None:
        """The time budget in seconds, or None."""
        return None if self.time_budget is None else parse_duration_s(self.time_budget)


class CertifyConfig(Config):
    """How the best trials are run again before a result is called certified."""

    top: Annotated[int, Field(gt=0)] = 5
    """Trials to run again, the fastest first."""
    seeds: Annotated[int, Field(gt=0)] = 5
    """Fresh seeds of each."""


class RunConfig(Config):
    """How a single training is run."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of weights, order and augmentation."""
    cpu_threads: Annotated[int, Field(gt=0)] | None = None
    """Threads of one operation on the CPU; null: one for each core."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:1`."""

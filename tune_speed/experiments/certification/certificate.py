"""Certificates: what others need to judge a certified result and to run it again.

No field has a default, so that none can be forgotten. What a machine does not have, such as the
UUID of a GPU, is None; so is an infinite time, as JSON has no infinity: its field says so.
"""

import math
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tune_speed.core import records
from tune_speed.core.records import RecordedRecipe
from tune_speed.core.stats import RateInterval, TimeInterval
from tune_speed.core.words import StopReason
from tune_speed.data.split import TrainedOn
from tune_speed.runtime.hardware import SystemFacts
from tune_speed.tuning.provenance import Code


class VerificationStatus(StrEnum):
    """How far a result can be believed."""

    ESTIMATE = "estimate"
    """From a search."""
    RETIMED = "re-timed"
    """Run again with fresh seeds, by those who found it."""
    DISTURBED = records.NOT_CERTIFIED
    """The same, but other programs disturbed it: it does not count."""
    REPRODUCED = "independently reproduced"
    """Run again by others."""
    CHALLENGED = "challenged"
    """Others got something else."""


class Task(records.Record):
    """The task: workload, target and limits."""

    workload: str
    """Name of the workload."""
    workload_hash: str
    """Hash over the workload and its data; rows are compared only within one."""
    dataset: str | None
    """Name of the data set; None for a training function, which has data of its own."""
    dataset_checksum: str | None
    """Hash over the images and labels; None for a training function."""
    split_seed: int | None
    """Seed by which the data was divided; None for a training function."""
    split_part: Literal["validation", "test"]
    """The part on which the target had to hold."""
    trained_on: TrainedOn | None
    """The parts that were trained on; None for a training function."""
    target: float
    """Worst value of the metric that counts as reached; of a share, in (0, 1]."""
    metric: str
    """The target metric, such as `accuracy`."""
    target_mode: str
    """Whether more of the metric is better (`max`), or less (`min`)."""
    function_hash: str | None
    """Hash over the source of the training function; None of a recipe."""
    mode: str
    """Crossing mode: `fixed_length` or `anytime`."""
    grid_samples: int | None
    """Evaluation grid [training samples]; None for a training function, which evaluates itself."""
    max_train_s: float
    """Limit of one run on the training clock [s]."""
    within_s: float | None = Field(exclude_if=lambda limit: limit is None)
    """Training time [s] within which the best metric is sought; None: the target, soonest."""
    tta_views: int
    """Views of an image that an evaluation averages; 1: no test-time augmentation."""

    @model_validator(mode="before")
    @classmethod
    def _of_older_versions(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        # Certificates from before targets had a mode, training functions, and `certify_on`.
        trained_on = "train" if fields.get("function_hash") is None else None
        only = {"target_mode": "max", "function_hash": None, "trained_on": trained_on}
        return {**only, "within_s": None, **fields}


class CertifiedRun(records.Record):
    """One training with one seed, hit or miss."""

    seed: int
    """Seed of weights, batches and augmentation."""
    is_hit: bool
    """Whether the target held."""
    time_to_target_s: float | None
    """Training clock at which it held [s]; None for a miss."""
    train_s: float
    """Training clock at the end of the run [s]."""
    timing: records.Timing
    """What the training clock is made of: seconds that passed, or steps times step time."""
    final_metric: float | None
    """The target metric at the end; None if it was never evaluated."""
    status: records.Status
    """How the run ended."""
    stop_reason: StopReason
    """Why it ended."""
    order: int
    """Place among all runs of the certification, the incumbent's included; the first is 0."""
    started_at: str
    """UTC, ISO 8601."""
    steps: int
    """Optimizer steps."""
    epochs: float
    """Passes over the training part."""
    samples: int
    """Training samples seen."""
    images_per_s: float | None
    """Training samples per second of the training clock; None without a step."""
    peak_memory_gib: float | None
    """Peak of the device's allocator (CUDA), or of resident memory (CPU) [GiB]."""
    cpu_wait_s: float | None
    """Seconds that its threads waited for a core, because of other work on the machine; None: not
    known."""


class Result(records.Record):
    """The result over all runs."""

    n: int
    """Runs."""
    k: int
    """Runs that met the target."""
    success_rate: RateInterval
    """Where the chance of meeting the target lies."""
    median_s: float | None
    """Median of train_s until the target held [s], misses as infinite; None: infinite."""
    mean_s: float | None
    """Mean of train_s over the runs that met the target [s]; None without one."""
    sd_s: float | None
    """Sample standard deviation of the same [s]; None with fewer than two."""
    min_s: float | None
    """Shortest of the same [s]; None without one."""
    max_s: float | None
    """Longest of the same [s]; None without one."""
    expected_s: float | None
    """Expected time with restarts, all time / hits [s]; None: infinite."""
    expected_interval: TimeInterval
    """Where the expected time with restarts lies."""
    metric_mean: float | None
    """Mean of the final metric over all runs; None if none was evaluated."""
    metric_sd: float | None
    """Sample standard deviation of the final metric; None with fewer than two."""
    margin: float | None
    """Mean of the final metric less the target; None if none was evaluated."""
    steps: float
    """Optimizer steps of a run, median."""
    epochs: float
    """Passes of a run over the training part, median."""
    samples: float
    """Training samples of a run, median."""
    pflop: float | None
    """Floating-point operations of a run, forward and backward, median [10^15]; None: unknown."""
    images_per_s: float | None
    """Training samples per second of the training clock, median; None without a step."""
    peak_memory_gib: float | None
    """Highest peak of all runs [GiB]; None: not known."""
    runs: tuple[CertifiedRun, ...]
    """Every run, misses included, in the order in which they ran."""

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        hits = sum(run.is_hit for run in self.runs)
        if (self.n, self.k) != (len(self.runs), hits):
            raise ValueError(f"n, k must be {len(self.runs)}, {hits}, but got {self.n}, {self.k}")
        return self


class ClockTimes(records.Record):
    """The five clocks of a run, or their sums."""

    setup_s: float
    """Data to the device, model and optimizer built [s]."""
    compile_s: float
    """Warm-up on dummy data, compilation included [s]."""
    train_s: float
    """Training [s]: the clock that counts."""
    eval_s: float
    """Scheduled evaluations [s]."""
    wall_s: float
    """From the first line of the run to its last [s]."""


class ClockSheet(records.Record):
    """The clocks of all runs, and the measuring rules."""

    runs: tuple[ClockTimes, ...]
    """The clocks of each run, in the order of `result.runs`."""
    total: ClockTimes
    """Their sums."""
    statement: str
    """What the training clock includes and what not, in words."""
    protocol_version: int
    """Version of the measuring rules; rows of different versions are never ranked together."""


class CertifiedRecipe(records.Record):
    """The recipe, and how to train it again."""

    resolved: RecordedRecipe
    """The whole recipe with every field, as YAML has it."""
    effective_batch_size: int | None
    """Samples of one optimizer step; None for a training function."""
    max_lr: float | None
    """Highest learning rate of an optimizer step, after scaling to the effective batch size; None
    for a training function."""
    model: str
    """Name of the model, or of the training function."""
    model_source: str
    """Where the model comes from, with its version, such as `timm 1.0.20`."""
    num_parameters: int | None
    """Parameters of the model, trainable or not; None for a training function."""
    stem: str | None
    """First layers of the model, such as `cifar`; None if the model has no such choice."""
    optimizer: str | None
    """Name of the optimizer; None for a training function."""
    seeds: tuple[int, ...]
    """Seeds of all runs, in the order in which they ran."""
    command: str
    """The exact command that ran, without its secrets."""


class System(records.Record):
    """The machine, and other trials on it."""

    machine: SystemFacts
    is_exclusive: bool
    """Whether the whole device was reserved for these runs: exclusive, or else shared."""
    cotenants: tuple[str, ...]
    """Other trials seen on the device meanwhile, such as `digits/t0007`."""
    device_fraction: float
    """Share of the device, of a CPU's cores or of a GPU, that a run had; 1: all of it."""
    cpu_threads: int
    """Threads of one operation on the CPU."""
    was_throttled: bool | None
    """Whether the device slowed down for heat or power meanwhile; None: not known."""


class Provenance(records.Record):
    """The search that found the recipe, and its cost."""

    tracking_uri: str | None
    """MLflow store that holds the runs, without its secrets; None: none."""
    search_run_id: str | None
    """MLflow run of the search; None: no search, or not in the store yet."""
    trial_run_id: str | None
    """MLflow run of the trial that was chosen; None likewise."""
    certified_run_id: str | None
    """MLflow run of this certificate; None: not in the store yet."""
    study: str
    """Optuna study, which is the search."""
    trial_id: str
    """Trial of the study, such as `t0007`."""
    sampler: str | None
    """Sampler that proposed it; None: no search."""
    space_hash: str
    """Hash over the search space."""
    search_seed: int | None
    """Seed of the sampler; None: no search."""
    search_run_seeds: tuple[int, ...]
    """Seeds with which the search trained."""
    tuning_trials: int
    """Trials of the search, misses included."""
    tuning_device_s: float
    """Seconds of a whole device that the search took: wall clock of a trial times its share."""
    chosen_by: str
    """How this recipe was picked from the search, in words."""
    has_fresh_seeds: bool
    """Whether no seed of these runs was used in the search."""


class Verification(records.Record):
    """How the result compares with the best known one, timed next to it."""

    status: VerificationStatus
    """How far the result can be believed."""
    incumbent: str | None
    """The leader that was timed next to it, such as `digits/t0003`; None: there was none, and all
    that follows about it is None or empty."""
    incumbent_recipe: RecordedRecipe | None
    """The leader's whole recipe."""
    incumbent_runs: tuple[CertifiedRun, ...]
    """Every run of the leader, misses included."""
    interleaving: tuple[str, ...]
    """Which recipe each run of the certification trained, in order: `t0007`, `t0003`, `t0007` …"""
    speedup: float | None
    """Leader's time / this one's; above 1 this one is faster. None: not known, or infinite."""
    speedup_low: float | None
    """Lower end of its 95 % interval; None: not known."""
    speedup_high: float | None
    """Upper end of its 95 % interval; None: not known, or infinite."""
    p_value: float | None
    """One-sided p-value of being faster than the leader; None without one."""
    adjusted_p_value: float | None
    """The same, corrected for the number of finalists; None without a leader."""
    metric_gain: float | None = Field(exclude_if=lambda gain: gain is None)
    """Where the best metric within a time is sought: by how much this one's is better than the
    leader's, on the mean; p-values are of that then. None: see `speedup`."""
    metric_gain_low: float | None = Field(exclude_if=lambda gain: gain is None)
    """Lower end of its 95 % interval."""
    metric_gain_high: float | None = Field(exclude_if=lambda gain: gain is None)
    """Upper end of it."""
    method: str | None
    """How p-value and interval were computed, in words; None without a leader."""
    dropping_rule: str
    """By which rule finalists were dropped early, and its error rate, in words."""

    @model_validator(mode="before")
    @classmethod
    def _without_gain(cls, fields: Any) -> Any:
        # Left out of those of times to target, and unknown to older ones.
        gain = dict.fromkeys(("metric_gain", "metric_gain_low", "metric_gain_high"))
        return {**gain, **fields} if isinstance(fields, dict) else fields


class Certificate(records.Record):
    """All sections that a certified row of a leaderboard must have."""

    certified_at: str
    """When the last run ended; UTC, ISO 8601."""
    task: Task
    result: Result
    clocks: ClockSheet
    recipe: CertifiedRecipe
    code: Code
    system: System
    provenance: Provenance
    verification: Verification

    @model_validator(mode="after")
    def _check_runs(self) -> Self:
        seeds = tuple(run.seed for run in self.result.runs)
        if self.recipe.seeds != seeds:
            raise ValueError(f"recipe.seeds must be those of the runs, {seeds}")
        if len(self.clocks.runs) != len(seeds):
            raise ValueError(f"clocks.runs must hold {len(seeds)} runs")
        if self.provenance.has_fresh_seeds != set(seeds).isdisjoint(
            self.provenance.search_run_seeds
        ):
            raise ValueError("provenance.has_fresh_seeds must agree with the seeds of the search")
        return self


def was_throttled(before: int | None, after: int | None) -> bool | None:
    """`before` and `after` are counts of `hardware.throttle_count`; None: not known."""
    return None if before is None or after is None else after > before


def certified_run(
    run: records.RunResult, *, final_metric: float | None, order: int, started_at: str
) -> CertifiedRun:
    """`order` is its place among all runs of the certification; `started_at` is UTC, ISO 8601."""
    same = CertifiedRun.model_fields.keys() & records.RunResult.model_fields.keys()
    return CertifiedRun(
        **{name: getattr(run, name) for name in same},
        is_hit=run.time_to_target_s is not None,
        train_s=run.clocks.train_s,
        final_metric=final_metric,
        order=order,
        started_at=started_at,
        epochs=run.final.epoch if run.final else 0.0,
    )


def clock_sheet(runs: tuple[records.RunResult, ...]) -> ClockSheet:
    times = tuple(ClockTimes(**run.clocks.model_dump()) for run in runs)
    sums = {n: math.fsum(getattr(time, n) for time in times) for n in ClockTimes.model_fields}
    return ClockSheet(
        runs=times,
        total=ClockTimes(**sums),
        statement=records.CLOCK_STATEMENT,
        protocol_version=records.PROTOCOL_VERSION,
    )

"""From the runs of a certification to certified records, each with its certificate."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from tune_speed.core.comparability import sign_of
from tune_speed.core.config import canonical_hash
from tune_speed.core.records import RunResult, Status, Timing, TrialRecord
from tune_speed.core.stats import (
    RateInterval,
    TimeInterval,
    expected_time_interval_s,
    expected_time_s,
    finite_or_none,
    median_time_s,
    sample_of,
    wilson_interval,
)
from tune_speed.custom.spec import task_of
from tune_speed.experiments.certification.certificate import (
    Certificate,
    CertifiedRecipe,
    CertifiedRun,
    Provenance,
    Result,
    System,
    Task,
    Verification,
    VerificationStatus,
    certified_run,
    clock_sheet,
    was_throttled,
)
from tune_speed.experiments.certification.ledger import Ran
from tune_speed.experiments.certification.schedule import FinalRank
from tune_speed.training.recipe import Recipe
from tune_speed.tuning.provenance import Surroundings

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Finalist:
    """A recipe that is certified, or the leader beside it."""

    name: str
    """`study/trial`."""
    record: TrialRecord
    """Where it comes from: an estimate, or for the leader a certified record."""
    run_id: str | None
    """MLflow run of that record."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What is known of the search."""

    uri: str
    command: str
    estimates: tuple[TrialRecord, ...]
    """All estimates of the study that may be compared with one another."""
    sampler: str | None
    search_seed: int | None
    chosen_by: str
    dropping_rule: str


def certified_record(
    placed: FinalRank,
    *,
    finalists: Mapping[str, Finalist],
    runs: Sequence[Ran],
    surroundings: tuple[Surroundings, Surroundings],
    origin: Origin,
    ranks: Mapping[str, FinalRank],
) -> TrialRecord:
    """Returns the certified record of a contestant.

    Args:
        placed: where it ended, with the runs that count.
        finalists: all contestants by name.
        runs: all runs of the certification, in order.
        surroundings: of its recipe, before the first run and after the last.
        origin: the search.
        ranks: all contestants' ranks by name.
    """
    own = finalists[placed.name]
    records = [runs[order].record for order in placed.orders]
    last = records[-1]
    certificate = Certificate(
        certified_at=last.finished_at,
        task=_task(last, surroundings[0]),
        result=_result(placed, records, surroundings[0]),
        clocks=clock_sheet(placed.runs),
        recipe=_recipe(placed, last, surroundings[0], origin),
        code=surroundings[0].code.section(
            config_hash=canonical_hash({"recipe": last.recipe, "workload": last.workload})
        ),
        system=_system(placed, last, surroundings),
        provenance=_provenance(placed, own, origin),
        verification=_verification(placed, finalists, runs, origin, ranks),
    )
    hits = sum(run.status == Status.REACHED for run in placed.runs)
    status = Status.REACHED if 2 * hits > len(placed.runs) else Status.MISSED
    return last.model_copy(
        update={
            "study": own.record.study,
            "trial_id": own.record.trial_id,
            "params": own.record.params,
            "proposal_reason": origin.chosen_by,
            "space_hash": own.record.space_hash,
            "kind": "certified",
            "status": status,
            "runs": placed.runs,
            "started_at": records[0].started_at,
            "certificate": certificate.model_dump(mode="json"),
        }
    )


def _task(record: TrialRecord, facts: Surroundings) -> Task:
    task = task_of(record)
    return Task(
        workload=record.workload_name,
        workload_hash=record.workload_hash,
        dataset=task.dataset_name,
        dataset_checksum=facts.dataset_checksum,
        split_seed=task.split_seed,
        split_part="test",
        target=task.target.value,
        metric=task.target.metric,
        target_mode=task.target.mode,
        function_hash=task.function_hash,
        mode=task.mode,
        grid_samples=task.grid_samples(num_train=facts.num_train),
        max_train_s=task.max_train_s,
        tta_views=1,
    )


def _result(placed: FinalRank, records: Sequence[TrialRecord], facts: Surroundings) -> Result:
    runs, workload = placed.runs, task_of(records[0])
    samples = [sample_of(run) for run in runs]
    times = [s.spent_s for s in samples if s.is_hit]
    metrics = [workload.metric_of(run.final) for run in runs if run.final is not None]
    low, high = expected_time_interval_s(samples, confidence=CONFIDENCE, miss_s=records[0].miss_s)
    rate = wilson_interval(len(times), len(runs), confidence=CONFIDENCE)
    mean = statistics.fmean(metrics) if metrics else None
    flop = facts.flop_per_sample
    return Result(
        n=len(runs),
        k=len(times),
        success_rate=RateInterval(low=rate[0], high=rate[1], confidence=CONFIDENCE),
        median_s=median_time_s([run.time_to_target_s for run in runs]),
        mean_s=statistics.fmean(times) if times else None,
        sd_s=statistics.stdev(times) if len(times) > 1 else None,
        min_s=min(times, default=None),
        max_s=max(times, default=None),
        expected_s=finite_or_none(expected_time_s(samples)),
        expected_interval=TimeInterval(
            low_s=finite_or_none(low), high_s=finite_or_none(high), confidence=CONFIDENCE
        ),
        metric_mean=mean,
        metric_sd=statistics.stdev(metrics) if len(metrics) > 1 else None,
        margin=None if mean is None else sign_of(workload.target) * (mean - workload.target.value),
        steps=statistics.median(run.steps for run in runs),
        epochs=statistics.median(run.final.epoch if run.final else 0.0 for run in runs),
        samples=statistics.median(run.samples for run in runs),
        pflop=None if flop is None else statistics.median(flop * r.samples for r in runs) / 1e15,
        images_per_s=_median([run.images_per_s for run in runs]),
        peak_memory_gib=max((r.peak_memory_gib for r in runs if r.peak_memory_gib), default=None),
        runs=_rows(placed, records),
    )


def _rows(placed: FinalRank, records: Sequence[TrialRecord]) -> tuple[CertifiedRun, ...]:
    return tuple(
        _row(run, record, order)
        for run, record, order in zip(placed.runs, records, placed.orders, strict=True)
    )


def _row(run: RunResult, record: TrialRecord, order: int) -> CertifiedRun:
    workload = task_of(record)
    final = None if run.final is None else workload.metric_of(run.final)
    return certified_run(run, final_metric=final, order=order, started_at=record.started_at)


def _recipe(
    placed: FinalRank, record: TrialRecord, facts: Surroundings, origin: Origin
) -> CertifiedRecipe:
    if record.is_own_loop:
        return _own_recipe(placed, record, origin)
    recipe = Recipe.model_validate(record.recipe)
    (model, fields), (optimizer, _) = (
        _named(record.recipe[name]) for name in ("model", "optimizer")
    )
    return CertifiedRecipe(
        resolved=record.recipe,
        effective_batch_size=recipe.samples_per_step,
        max_lr=facts.max_lr,
        model=str(fields.get("name", model)),
        model_source=_source_of(model),
        num_parameters=facts.num_parameters,
        stem=fields.get("stem"),
        optimizer=optimizer,
        seeds=tuple(run.seed for run in placed.runs),
        command=origin.command,
    )


def _own_recipe(placed: FinalRank, record: TrialRecord, origin: Origin) -> CertifiedRecipe:
    """Returns what a training function was called with; the rest is its own affair."""
    return CertifiedRecipe(
        resolved=record.recipe,
        effective_batch_size=None,
        max_lr=None,
        model=str(record.workload["function"]),
        model_source=f"source {record.workload['function_hash']}",
        num_parameters=None,
        stem=None,
        optimizer=None,
        seeds=tuple(run.seed for run in placed.runs),
        command=origin.command,
    )


def _named(tree: str | Mapping[str, Mapping[str, object]]) -> tuple[str, Mapping[str, object]]:
    """Returns name and fields of a component as records have it."""
    if isinstance(tree, str):
        return tree, {}
    ((name, fields),) = tree.items()
    return name, fields or {}


def _source_of(model: str) -> str:
    if model in ("timm", "torchvision"):
        return f"{model} {metadata.version(model)}"
    return f"tune_speed {metadata.version('tune_speed')}"


def _system(
    placed: FinalRank, record: TrialRecord, surroundings: tuple[Surroundings, Surroundings]
) -> System:
    before, after = surroundings
    return System(
        machine=before.machine,
        is_exclusive=all(run.timing == Timing.EXCLUSIVE for run in placed.runs),
        cotenants=tuple(sorted({name for run in placed.runs for name in run.cotenants})),
        device_fraction=1.0,
        cpu_threads=record.cpu_threads,
        was_throttled=was_throttled(before.throttle_count, after.throttle_count),
    )


def _provenance(placed: FinalRank, own: Finalist, origin: Origin) -> Provenance:
    used = tuple(run.seed for record in origin.estimates for run in record.runs)
    seeds = {run.seed for run in placed.runs}
    return Provenance(
        tracking_uri=origin.uri,
        search_run_id=None,
        trial_run_id=own.run_id,
        certified_run_id=None,
        study=own.record.study,
        trial_id=own.record.trial_id,
        sampler=origin.sampler,
        space_hash=own.record.space_hash,
        search_seed=origin.search_seed,
        search_run_seeds=used,
        tuning_trials=len(origin.estimates),
        tuning_device_s=sum(
            run.clocks.wall_s / (record.max_cotenants + 1)
            for record in origin.estimates
            for run in record.runs
        ),
        chosen_by=origin.chosen_by,
        has_fresh_seeds=seeds.isdisjoint(used),
    )


def _verification(
    placed: FinalRank,
    finalists: Mapping[str, Finalist],
    runs: Sequence[Ran],
    origin: Origin,
    ranks: Mapping[str, FinalRank],
) -> Verification:
    rival, compared = placed.rival, placed.comparison
    ratio = None if compared is None else compared.ratio
    theirs = ranks[rival] if rival is not None else None
    return Verification(
        status=VerificationStatus.RETIMED,
        incumbent=rival,
        incumbent_recipe=None if rival is None else finalists[rival].record.recipe,
        incumbent_runs=()
        if theirs is None
        else _rows(theirs, [runs[order].record for order in theirs.orders]),
        interleaving=tuple(ran.turn.name for ran in runs),
        speedup=_inverse(ratio),
        speedup_low=None if compared is None else _inverse(compared.high),
        speedup_high=None if compared is None else _inverse(compared.low),
        p_value=None if compared is None else compared.p_value,
        adjusted_p_value=placed.adjusted_p_value,
        method=None if compared is None else compared.method,
        dropping_rule=origin.dropping_rule,
    )


def _inverse(ratio: float | None) -> float | None:
    """Returns 1 / ratio; None where it is infinite or not known."""
    if not ratio:
        return None
    return finite_or_none(1 / ratio)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None

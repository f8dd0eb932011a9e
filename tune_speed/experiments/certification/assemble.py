"""Turns the runs of a certification into certified records, each with its certificate."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from tune_speed.core.comparability import sign_of, totals_of
from tune_speed.core.config import canonical_hash
from tune_speed.core.records import Status, Timing, TrialRecord
from tune_speed.core.stats import RunStatistics, finite_or_none, sample_of
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
from tune_speed.experiments.certification.finalists import Finalist
from tune_speed.experiments.certification.ledger import Ran
from tune_speed.experiments.certification.schedule import FinalRank
from tune_speed.training.recipe import Recipe
from tune_speed.tuning.provenance import Surroundings

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The search that found the finalists."""

    uri: str
    command: str
    estimates: tuple[TrialRecord, ...]
    """All estimates of the study that may be compared with one another."""
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
        placed: its final rank, with the runs that count.
        finalists: all contestants by name.
        runs: all runs of the certification, in order.
        surroundings: of its recipe, before the first run and after the last.
        origin: the search.
        ranks: all contestants' ranks by name.
    """
    own = finalists[placed.name].record
    records = [runs[order].record for order in placed.orders]
    last = records[-1]
    parts = _Parts(placed, tuple(records), surroundings, origin)
    certificate = Certificate(
        certified_at=last.finished_at,
        task=parts.task(),
        result=parts.result(),
        clocks=clock_sheet(placed.runs),
        recipe=parts.recipe(),
        code=surroundings[0].code.section(
            config_hash=canonical_hash({"recipe": last.recipe, "workload": last.workload})
        ),
        system=parts.system(),
        provenance=parts.provenance(finalists[placed.name]),
        verification=parts.verification(finalists, runs, ranks),
    )
    is_reached = 2 * parts.statistics.hits > len(placed.runs)
    return last.model_copy(
        update={
            "study": own.study,
            "trial_id": own.trial_id,
            "params": own.params,
            "proposal_reason": origin.chosen_by,
            "space_hash": own.space_hash,
            "kind": "certified",
            "status": Status.REACHED if is_reached else Status.MISSED,
            "runs": placed.runs,
            "started_at": records[0].started_at,
            "certificate": certificate.model_dump(mode="json"),
        }
    )


def _rows(placed: FinalRank, records: Sequence[TrialRecord]) -> tuple[CertifiedRun, ...]:
    task, rows = task_of(records[0]), []
    for run, record, order in zip(placed.runs, records, placed.orders, strict=True):
        final = None if run.final is None else task.metric_of(run.final)
        rows.append(
            certified_run(run, final_metric=final, order=order, started_at=record.started_at)
        )
    return tuple(rows)


@dataclass(frozen=True)
class _Parts:
    """The sections of a contestant's certificate."""

    placed: FinalRank
    records: tuple[TrialRecord, ...]
    """Of the runs that count."""
    surroundings: tuple[Surroundings, Surroundings]
    origin: Origin

    @property
    def statistics(self) -> RunStatistics:
        samples = tuple(map(sample_of, self.placed.runs))
        return RunStatistics(samples, self.records[0].miss_s, CONFIDENCE)

    def task(self) -> Task:
        record, facts = self.records[-1], self.surroundings[0]
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

    def result(self) -> Result:
        runs, task, found = self.placed.runs, task_of(self.records[0]), self.statistics
        times, flop = found.hits_s, self.surroundings[0].flop_per_sample
        metrics = [task.metric_of(run.final) for run in runs if run.final is not None]
        mean = statistics.fmean(metrics) if metrics else None
        speeds = [run.images_per_s for run in runs if run.images_per_s is not None]
        peaks_gib = [run.peak_memory_gib for run in runs if run.peak_memory_gib]
        return Result(
            n=found.n,
            k=found.hits,
            success_rate=found.success_rate,
            median_s=found.median_s,
            mean_s=found.mean_hit_s,
            sd_s=statistics.stdev(times) if len(times) > 1 else None,
            min_s=min(times, default=None),
            max_s=max(times, default=None),
            expected_s=finite_or_none(found.expected_s),
            expected_interval=found.expected_interval,
            metric_mean=mean,
            metric_sd=statistics.stdev(metrics) if len(metrics) > 1 else None,
            margin=None if mean is None else sign_of(task.target) * (mean - task.target.value),
            steps=statistics.median(run.steps for run in runs),
            epochs=statistics.median(run.final.epoch if run.final else 0.0 for run in runs),
            samples=statistics.median(run.samples for run in runs),
            pflop=flop and statistics.median(flop * run.samples for run in runs) / 1e15,
            images_per_s=statistics.median(speeds) if speeds else None,
            peak_memory_gib=max(peaks_gib, default=None),
            runs=_rows(self.placed, self.records),
        )

    def recipe(self) -> CertifiedRecipe:
        record, facts = self.records[-1], self.surroundings[0]
        fields: dict[str, Any]
        if record.is_own_loop:
            fields = {
                "effective_batch_size": None,
                "model": str(record.workload["function"]),
                "model_source": f"source {record.workload['function_hash']}",
                "stem": None,
                "optimizer": None,
            }
        else:
            # In records a component is its name, or `{name: fields}`.
            trees = (record.recipe[part] for part in ("model", "optimizer"))
            trees = ({tree: {}} if isinstance(tree, str) else tree for tree in trees)
            (model, model_fields), (optimizer, _) = (*(next(iter(t.items())) for t in trees),)
            package = model if model in ("timm", "torchvision") else "tune_speed"
            model_fields = model_fields or {}
            fields = {
                "effective_batch_size": Recipe.model_validate(record.recipe).samples_per_step,
                "model": str(model_fields.get("name", model)),
                "model_source": f"{package} {metadata.version(package)}",
                "stem": model_fields.get("stem"),
                "optimizer": optimizer,
            }
        return CertifiedRecipe(
            **fields,
            resolved=record.recipe,
            max_lr=facts.max_lr,
            num_parameters=facts.num_parameters,
            seeds=tuple(run.seed for run in self.placed.runs),
            command=self.origin.command,
        )

    def system(self) -> System:
        (before, after), runs = self.surroundings, self.placed.runs
        return System(
            machine=before.machine,
            is_exclusive=all(run.timing == Timing.EXCLUSIVE for run in runs),
            cotenants=tuple(sorted({name for run in runs for name in run.cotenants})),
            device_fraction=1.0,
            cpu_threads=self.records[-1].cpu_threads,
            was_throttled=was_throttled(before.throttle_count, after.throttle_count),
        )

    def provenance(self, own: Finalist) -> Provenance:
        origin = self.origin
        used = tuple(run.seed for record in origin.estimates for run in record.runs)
        return Provenance(
            tracking_uri=origin.uri,
            search_run_id=None,
            trial_run_id=own.run_id,
            certified_run_id=None,
            study=own.record.study,
            trial_id=own.record.trial_id,
            sampler=None,
            space_hash=own.record.space_hash,
            search_seed=None,
            search_run_seeds=used,
            tuning_trials=len(origin.estimates),
            tuning_device_s=totals_of(origin.estimates).device_s,
            chosen_by=origin.chosen_by,
            has_fresh_seeds={run.seed for run in self.placed.runs}.isdisjoint(used),
        )

    def verification(
        self,
        finalists: Mapping[str, Finalist],
        runs: Sequence[Ran],
        ranks: Mapping[str, FinalRank],
    ) -> Verification:
        rival, compared = self.placed.rival, self.placed.comparison
        theirs = None if rival is None else ranks[rival]
        records = [] if theirs is None else [runs[order].record for order in theirs.orders]
        return Verification(
            status=VerificationStatus.RETIMED,
            incumbent=rival,
            incumbent_recipe=None if rival is None else finalists[rival].record.recipe,
            incumbent_runs=() if theirs is None else _rows(theirs, records),
            interleaving=tuple(ran.turn.name for ran in runs),
            speedup=_inverse(compared and compared.ratio),
            speedup_low=_inverse(compared and compared.high),
            speedup_high=_inverse(compared and compared.low),
            p_value=compared and compared.p_value,
            adjusted_p_value=self.placed.adjusted_p_value,
            method=compared and compared.method,
            dropping_rule=self.origin.dropping_rule,
        )


def _inverse(ratio: float | None) -> float | None:
    """Returns 1 / ratio; None where it is infinite or not known."""
    return finite_or_none(1 / ratio) if ratio else None

"""Turns the runs of a certification into certified records, each with its certificate."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from tune_speed.core.comparability import sign_of, totals_of
from tune_speed.core.config import canonical_hash
from tune_speed.core.records import Status, Timing, TrialRecord
from tune_speed.core.significance import Comparison
from tune_speed.core.stats import RunStatistics, deviation, finite_or_none, sample_of
from tune_speed.core.words import ProposalKind, ProposalReason
from tune_speed.custom.spec import task_of
from tune_speed.experiments.certification import certificate as sections
from tune_speed.experiments.certification.schedule import FinalRank, Turn
from tune_speed.tracking.reader.tables import TrackedTrial
from tune_speed.training.recipe import Recipe
from tune_speed.tuning.provenance import Surroundings

CONFIDENCE = 0.95

DROPPING_RULE = (
    "after each round a finalist is dropped whose expected time with restarts is above the best's"
    " beyond doubt; the chance that the true best is dropped is at most 5 % over the whole race"
)
NO_DROPPING = "none is dropped: all run with all seeds"
BEST_METHOD = (
    "mean difference of the metric at the end, paired t-test; a run past the time is worse"
)


@dataclass(frozen=True, kw_only=True)
class Certification:
    """What ran, and the search that found the finalists."""

    finalists: Mapping[str, TrackedTrial]
    runs: Mapping[Turn, TrialRecord]
    """In the order in which they ran."""
    ranks: Sequence[FinalRank]
    surroundings: Mapping[str, tuple[Surroundings, Surroundings]]
    """By name, before the first run and after the last."""
    uri: str
    command: str
    estimates: tuple[TrialRecord, ...]
    chosen_by: str


def certified_record(placed: FinalRank, of: Certification) -> TrialRecord:
    own = of.finalists[placed.name].record
    parts = _Parts(placed, of)
    records, surroundings = parts.records, parts.surroundings
    last = records[-1]
    certificate = sections.Certificate(
        certified_at=last.finished_at,
        task=parts.task(),
        result=parts.result(),
        clocks=sections.clock_sheet(placed.runs),
        recipe=parts.recipe(),
        code=surroundings[0].code.section(
            config_hash=canonical_hash({"recipe": last.recipe, "workload": last.workload})
        ),
        system=parts.system(),
        provenance=parts.provenance(),
        verification=parts.verification(),
    )
    is_reached = 2 * parts.statistics.hits > len(placed.runs)
    return last.model_copy(
        update={
            **{n: getattr(own, n) for n in ("study", "trial_id", "params", "space_hash")},
            "proposal_reason": ProposalReason.of(ProposalKind.OTHER, text=of.chosen_by),
            "kind": "certified",
            "status": Status.REACHED if is_reached else Status.MISSED,
            "runs": placed.runs,
            "started_at": records[0].started_at,
            "certificate": certificate.model_dump(mode="json"),
        }
    )


@dataclass(frozen=True)
class _Parts:
    placed: FinalRank
    of: Certification

    @property
    def surroundings(self) -> tuple[Surroundings, Surroundings]:
        return self.of.surroundings[self.placed.name]

    @property
    def records(self) -> list[TrialRecord]:
        ran = list(self.of.runs.values())
        return [ran[order] for order in self.placed.orders]

    @property
    def statistics(self) -> RunStatistics:
        samples = tuple(map(sample_of, self.placed.runs))
        return RunStatistics(samples, self.records[0].miss_s, CONFIDENCE)

    def rows(self) -> tuple[sections.CertifiedRun, ...]:
        task = task_of(self.records[0])
        return tuple(
            sections.certified_run(
                run,
                final_metric=None if run.final is None else task.metric_of(run.final),
                order=order,
                started_at=record.started_at,
            )
            for run, order, record in zip(
                self.placed.runs, self.placed.orders, self.records, strict=True
            )
        )

    def task(self) -> sections.Task:
        record, facts = self.records[-1], self.surroundings[0]
        task = task_of(record)
        return sections.Task(
            workload=record.workload_name,
            workload_hash=record.workload_hash,
            dataset=task.dataset_name,
            dataset_checksum=facts.dataset_checksum,
            split_seed=task.split_seed,
            split_part="test",
            trained_on=task.certify_on,
            target=task.target.value,
            metric=task.target.metric,
            target_mode=task.target.mode,
            function_hash=task.function_hash,
            mode=task.mode,
            grid_samples=task.grid_samples(num_train=facts.num_train),
            max_train_s=task.max_train_s,
            within_s=task.target.within_s,
            tta_views=1,
        )

    def result(self) -> sections.Result:
        runs, task, found = self.placed.runs, task_of(self.records[0]), self.statistics
        metrics = [task.metric_of(run.final) for run in runs if run.final is not None]
        mean = statistics.fmean(metrics) if metrics else None
        flop = self.surroundings[0].flop_per_sample or 0.0
        flops = [each for run in runs if (each := run.flop or flop * run.samples)]
        speeds = [run.images_per_s for run in runs if run.images_per_s is not None]
        return sections.Result(
            n=found.n,
            k=found.hits,
            success_rate=found.success_rate,
            median_s=found.median_s,
            mean_s=found.mean_hit_s,
            sd_s=deviation(found.hits_s),
            min_s=min(found.hits_s, default=None),
            max_s=max(found.hits_s, default=None),
            expected_s=finite_or_none(found.expected_s),
            expected_interval=found.expected_interval,
            metric_mean=mean,
            metric_sd=deviation(metrics),
            margin=None if mean is None else sign_of(task.target) * (mean - task.target.value),
            steps=statistics.median(run.steps for run in runs),
            epochs=statistics.median(run.final.epoch if run.final else 0.0 for run in runs),
            samples=statistics.median(run.samples for run in runs),
            pflop=statistics.median(flops) / 1e15 if flops else None,
            images_per_s=statistics.median(speeds) if speeds else None,
            peak_memory_gib=max(
                (r.peak_memory_gib for r in runs if r.peak_memory_gib), default=None
            ),
            runs=self.rows(),
        )

    def recipe(self) -> sections.CertifiedRecipe:
        record, facts = self.records[-1], self.surroundings[0]
        model, model_fields = _component(record.recipe.get("model"))
        package = model if model in ("timm", "torchvision") else "tune_speed"
        is_own = record.is_own_loop
        size = None if is_own else Recipe.model_validate(record.recipe).samples_per_step
        own_source = f"source {record.workload.get('function_hash')}"
        return sections.CertifiedRecipe(
            resolved=record.recipe,
            effective_batch_size=size,
            max_lr=facts.max_lr,
            model=str(record.workload["function"] if is_own else model_fields.get("name", model)),
            model_source=own_source if is_own else f"{package} {metadata.version(package)}",
            num_parameters=facts.num_parameters,
            stem=None if is_own else model_fields.get("stem"),
            optimizer=None if is_own else _component(record.recipe["optimizer"])[0],
            seeds=tuple(run.seed for run in self.placed.runs),
            command=self.of.command,
        )

    def system(self) -> sections.System:
        (before, after), runs = self.surroundings, self.placed.runs
        return sections.System(
            machine=before.machine,
            is_exclusive=all(run.timing != Timing.SHARED for run in runs),
            cotenants=tuple(sorted({name for run in runs for name in run.cotenants})),
            device_fraction=1.0,
            cpu_threads=self.records[-1].cpu_threads,
            was_throttled=sections.was_throttled(before.throttle_count, after.throttle_count),
        )

    def provenance(self) -> sections.Provenance:
        of, own = self.of, self.of.finalists[self.placed.name]
        used = tuple(run.seed for record in of.estimates for run in record.runs)
        return sections.Provenance(
            tracking_uri=of.uri,
            search_run_id=None,
            trial_run_id=own.run_id,
            certified_run_id=None,
            study=own.record.study,
            trial_id=own.record.trial_id,
            sampler=None,
            space_hash=own.record.space_hash,
            search_seed=None,
            search_run_seeds=used,
            tuning_trials=len(of.estimates),
            tuning_device_s=totals_of(of.estimates).device_s,
            chosen_by=of.chosen_by,
            has_fresh_seeds={run.seed for run in self.placed.runs}.isdisjoint(used),
        )

    def verification(self) -> sections.Verification:
        of, rival, compared = self.of, self.placed.rival, self.placed.comparison
        theirs = next((each for each in of.ranks if each.name == rival), None)
        is_best = task_of(self.records[0]).target.seeks_best
        # A difference of means is one of all runs; of a late one there is no metric.
        runs = (*self.placed.runs, *(theirs.runs if theirs else ()))
        all_in_time = all(run.status is Status.REACHED for run in runs)
        is_disturbed = Timing.DISTURBED in {run.timing for run in self.placed.runs}
        status = sections.VerificationStatus
        return sections.Verification(
            status=status.DISTURBED if is_disturbed else status.RETIMED,
            incumbent=rival,
            incumbent_recipe=None if rival is None else of.finalists[rival].record.recipe,
            incumbent_runs=() if theirs is None else _Parts(theirs, of).rows(),
            interleaving=tuple(turn.name for turn in of.runs),
            **_gains("speedup", None if is_best else compared, lambda ratio: 1 / ratio),
            **_gains("metric_gain", compared if is_best and all_in_time else None, _minus_ln),
            p_value=compared and compared.p_value,
            adjusted_p_value=self.placed.adjusted_p_value,
            method=BEST_METHOD if is_best and compared else compared and compared.method,
            dropping_rule=NO_DROPPING if is_best else DROPPING_RULE,
        )


def _component(tree: Any) -> tuple[str, dict[str, Any]]:
    # In records a component is its name, or `{name: fields}`.
    name, fields = next(iter(tree.items())) if isinstance(tree, dict) else (str(tree), None)
    return name, fields or {}


def _gains(
    name: str, compared: Comparison | None, change: Callable[[float], float]
) -> dict[str, float | None]:
    """Returns a falling function of the ratio and of its ends; None where it is infinite."""
    ends = (compared.ratio, compared.high, compared.low) if compared else (None,) * 3
    gains = [finite_or_none(change(end)) if end else None for end in ends]
    return dict(zip((name, f"{name}_low", f"{name}_high"), gains, strict=True))


def _minus_ln(ratio: float) -> float:
    return -math.log(ratio)

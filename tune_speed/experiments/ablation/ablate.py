"""What changes of a recipe do to its time and its scores: arms in turns, seeds as blocks.

Every run is on disk before the next begins, so that the same command resumes where it stopped.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tune_speed.core.comparability import final_metric
from tune_speed.core.config import canonical_hash
from tune_speed.core.errors import ConfigError, DataError, ServiceError, StorageError
from tune_speed.core.event_log import latest_log
from tune_speed.core.records import PROTOCOL_VERSION, TrialRecord, ended_as
from tune_speed.core.text import counted
from tune_speed.core.words import ProposalKind, ProposalReason
from tune_speed.data.cache import prepare
from tune_speed.experiments.ablation import plan as planning
from tune_speed.experiments.ablation.plan import AblationPlan
from tune_speed.experiments.ablation.result import (
    AblationLedger,
    AblationResult,
    AblationTask,
    Tried,
    TuningPoint,
    Turn,
)
from tune_speed.experiments.ablation.summarise import BROKEN, summarise_arms
from tune_speed.experiments.rerun import cpu_threads, train_once
from tune_speed.experiments.session import Stop, balanced_order, left_text, rounds, stoppable
from tune_speed.runtime.atomic_file import replace_text
from tune_speed.runtime.device import device_of, resolve_device
from tune_speed.study.file import RecipeFile
from tune_speed.training.loop import Interrupted

# What is added to the seed for re-tuning: no arm is compared on the runs it was chosen by.
TUNING_SEEDS = 1_000_000

Say = Callable[[str], None]


class Ablation(NamedTuple):
    """What was run."""

    result: AblationResult
    records: tuple[TrialRecord, ...]
    """All runs, including those of the re-tuning, as trials of one study."""
    folder: Path
    was_stopped: bool
    """Whether Ctrl-C ended it; the run that it met is left out."""


def run_ablation(
    plan: AblationPlan,
    *,
    folder: Path,
    part: str = "",
    again: bool = False,
    download: bool,
    on_progress: Callable[[int, int], None],
    on_line: Say,
) -> Ablation:
    """Runs all arms with all seeds, or resumes them; finished runs survive Ctrl-C.

    Raises: ConfigError, DataError, StorageError.
    """
    for arm, factor in itertools.product(plan.files, plan.config.retune_factors):
        # Only for its errors: a factor that a recipe refuses is found before anything is trained.
        plan.tuned_file(arm, factor)
    data = prepare(plan.base.workload.dataset, download=download, on_progress=on_progress)
    name = "-".join(filter(None, [plan.base.name, part, "ablation"]))
    path = latest_log(folder / plan.base.name / "ablation", part or "ablation", again=again)
    with AblationLedger(path) as ledger:
        ledger.begin(_header(plan, data.data_hash))
        number = path.stem.rpartition("-")[2]
        study = name if number == "1" else f"{name}-{number}"
        run = _Running(plan=plan, ledger=ledger, data_hash=data.data_hash, say=on_line, study=study)
        run.say_outlook()
        with stoppable(Interrupted) as run.stop:
            _run_all(run)
        records = (*ledger.of(Tried).values(), *ledger.of(Turn).values())
        result = _result(run, part)
    return Ablation(result, records, path.with_suffix(""), run.stop.was_stopped)


def _header(plan: AblationPlan, data_hash: str) -> dict[str, Any]:
    base, config = plan.base, plan.config
    device = device_of(resolve_device(base.run.device))
    identities = {
        name: {
            "recipe": file.recipe.identity_fields(),
            "threads": cpu_threads(file),
            **({} if file.run.device == base.run.device else {"device": file.run.device}),
        }
        for name, file in plan.files.items()
    }
    return {
        "design": config.design,
        "seeds": config.seeds,
        "first seed": base.run.seed,
        "retune": config.retune,
        "retune factors": config.retune_factors if config.retune else None,
        "retune seeds": config.retune_seeds if config.retune else None,
        "arms": {name: canonical_hash(identity) for name, identity in identities.items()},
        "workload": base.workload.identity(data_hash=data_hash),
        # Without its threads: each arm has its own.
        "machine": f"cpu ({device.type})" if device.kind == "cpu" else device.type,
        "protocol": PROTOCOL_VERSION,
        # The hashes decide; with these a message can name the field that differs.
        "fields": {
            "workload": {**base.workload.task_fields(), "data": data_hash},
            "recipe": base.recipe.identity_fields(),
            "run": {"cpu_threads": cpu_threads(base)},
        },
    }


@dataclass
class _Running:
    plan: AblationPlan
    ledger: AblationLedger
    data_hash: str
    say: Say
    study: str
    stop: Stop = field(default_factory=Stop)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(arm.name for arm in self.plan.arms)

    def say_outlook(self) -> None:
        config = self.plan.config
        for name, reason in self.plan.not_applicable.items():
            self.say(f"{name} is not applicable here: {reason}")
        runs = f"{counted(len(self.names), 'arm')} × {counted(config.seeds, 'seed')}"
        self.say(f"{self.study}: {config.design}, {runs}, in turns")
        if done := len(self.ledger.records):
            self.say(f"going on after {counted(done, 'run')} in {self.ledger.path}")

    def tuning(self) -> dict[str, list[TuningPoint]]:
        tried = self.ledger.of(Tried).items()
        return {name: [_point(t, r) for t, r in tried if t.arm == name] for name in self.names}

    def factors(self) -> dict[str, float]:
        tuning, order = self.tuning().items(), self.plan.order
        return {name: planning.best_factor(points, order) for name, points in tuning if points}

    def train(self, file: RecipeFile, label: str, *, seed: int, trial: int) -> TrialRecord:
        """Trains an arm once; whatever goes wrong in it but missing data is its outcome."""
        record = train_once(
            file,
            data_hash=self.data_hash,
            seed=seed,
            on_line=lambda line: None,
            # Without data no arm can run; all else that goes wrong is this arm's outcome.
            refuse=(DataError,),
            interrupt=self.stop.came,
        )
        own = {"study": self.study, "trial_id": f"t{trial:04d}"}
        reason = ProposalReason.of(ProposalKind.OTHER, text=label)
        return record.model_copy(update={**own, "proposal_reason": reason})


def _run_all(run: _Running) -> None:
    config, first = run.plan.config, run.plan.base.run.seed
    factors = _tune(run) if config.retune else {}
    files = {name: run.plan.tuned_file(name, factors.get(name, 1.0)) for name in run.names}
    for block, seed, name in rounds(run.names, range(first, first + config.seeds)):
        turn = Turn(name, block)
        if turn in run.ledger.records:
            continue
        # By the turn and not by a counter: a resumed run has the number that it would have had.
        trial = block * len(run.names) + run.names.index(name)
        record = run.train(files[name], f"arm {name}, seed {seed}", seed=seed, trial=trial)
        settings = dict(run.plan.settings[name])
        run.ledger.add(turn, record.model_copy(update={"params": settings}))
        done = run.ledger.of(Turn)
        left = left_text(len(run.names) * config.seeds - len(done), done.values())
        run.say(f"seed {seed}, {name}: {_outcome(record)}  ({left})")


def _outcome(record: TrialRecord) -> str:
    run = record.runs[-1]
    if run.final is None:
        return f"{ended_as(run)}, {run.stop_reason}"
    scores = "" if run.final.accuracy is None else f", accuracy {run.final.accuracy:.4f}"
    return f"{run.status.value}, train_s {run.clocks.train_s:.2f}{scores}"


# --- Re-tuning


def _tune(run: _Running) -> dict[str, float]:
    config = run.plan.config
    for number in range(len(config.retune_factors) + planning.MOST_BEYOND):
        for name in balanced_order(run.names, block=number):
            factor = _factor(run, name, number)
            if factor is not None:
                _try(run, name, factor)
    chosen = run.factors()
    words = ", ".join(f"{name} ×{factor:g}" for name, factor in chosen.items())
    run.say(f"re-tuned {config.retune}: {words}")
    return chosen


def _factor(run: _Running, name: str, number: int) -> float | None:
    """Returns the factor that an arm tries then: Ctrl-C may have left it a part of its seeds."""
    points = run.tuning()[name]
    tried = list(dict.fromkeys(point.factor for point in points))
    if number < len(tried):
        return tried[number]
    factor = planning.next_factor(run.plan.config.retune_factors, points, run.plan.order)
    try:
        run.plan.tuned_file(name, factor or 1.0)
    except ConfigError:
        # No recipe has such a value: a share above 1.
        return None
    return factor


def _try(run: _Running, name: str, factor: float) -> None:
    config = run.plan.config
    first = run.plan.base.run.seed + TUNING_SEEDS
    file = run.plan.tuned_file(name, factor)
    label = f"re-tuning {name}, {config.retune} ×{factor:g}"
    for seed in range(first, first + config.retune_seeds):
        tried = Tried(name, factor, seed)
        if tried in run.ledger.records:
            continue
        # Beyond the numbers of the comparison, which follow from arm and seed.
        trial = len(run.names) * config.seeds + len(run.ledger.of(Tried))
        record = run.train(file, label, seed=seed, trial=trial)
        run.ledger.add(tried, record)
        run.say(f"{label}: {_outcome(record)}")


def _point(tried: Tried, record: TrialRecord) -> TuningPoint:
    run = record.runs[-1]
    # The last evaluation of a run that failed is not the end of a training.
    is_broken = run.final is None or run.status in BROKEN
    return TuningPoint(
        factor=tried.factor,
        metric=None if is_broken else final_metric(record),
        time_to_target_s=run.time_to_target_s,
        status=run.status,
        seed=tried.seed,
    )


# --- Result


def _result(run: _Running, part: str) -> AblationResult:
    plan, config, workload = run.plan, run.plan.config, run.plan.base.workload
    same = config.model_dump(include={"design", "seeds", "retune"})
    task = AblationTask(study=run.study, part=part, workload_name=workload.label, **same)
    records: dict[str, list[TrialRecord]] = {}
    for turn, record in sorted(run.ledger.of(Turn).items(), key=lambda item: item[0].block):
        records.setdefault(turn.arm, []).append(record)
    return summarise_arms(
        task,
        records,
        axes=plan.axes,
        arms=(*plan.arms, *plan.absent),
        settings=plan.settings,
        workload=workload.model_dump(mode="json"),
        not_applicable=plan.not_applicable,
        tuning=run.tuning(),
        lr_factors=run.factors(),
    )


def deliver_runs(ablation: Ablation) -> str:
    """Delivers the runs to MLflow, where it is installed; returns what it did not take, if any."""
    if not ablation.records:
        return ""
    if find_spec("mlflow") is None:
        return "MLflow is not installed: the runs are in the ledger only"
    from tune_speed.tracking.store.store import Store
    from tune_speed.tracking.writer.tracker import deliver, names_of

    study, store = ablation.result.study, Store()
    try:
        missing = deliver(store, ablation.records, study=study, search_id=study)
    except (ServiceError, StorageError) as error:
        return f"warning: MLflow has not got the runs; the same command delivers them: {error}"
    if not missing:
        return ""
    named = f"{names_of(missing)} ({missing[0].reason})"
    return f"warning: MLflow at {store} has not taken {named}; the same command delivers them"


def save_result(ablation: Ablation) -> Path:
    path = ablation.folder.with_name(f"{ablation.folder.name}.json")
    text = json.dumps(ablation.result.model_dump(mode="json"), indent=2, allow_nan=False)
    replace_text(path, text)
    return path

"""One recipe, trained here and now: from a file, or from a trial on record."""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tune_speed.config import canonical_hash
from tune_speed.data.cache import prepare
from tune_speed.errors import TuneSpeedError
from tune_speed.export import recipe_yaml
from tune_speed.objective import finish, run_trial
from tune_speed.records import Status, TrialRecord
from tune_speed.search.study_file import RecipeFile, load_recipe, parse_recipe
from tune_speed.stats import median_time_s, wilson_interval
from tune_speed.trial import Allotment, TrialSpec

_RUN_ID = re.compile(r"[0-9a-f]{32}|[\w.-]+/t\d{4,}")


def load_rerun(source: str, *, overrides: Sequence[str], check_data: bool) -> RecipeFile:
    """Returns the recipe of a file, or that of a trial named by MLflow run id or STUDY/TRIAL.

    MLflow is looked at only where `source` is no file and reads like such a name. With
    `check_data` False the data set may still have to be downloaded.
    """
    if Path(source).exists() or not _RUN_ID.fullmatch(source):
        return load_recipe(source, overrides=overrides, check_data=check_data)
    from tune_speed.tracking.queries import find_trial
    from tune_speed.tracking.uri import tracking_uri

    tracked = find_trial(tracking_uri(), source)
    text = recipe_yaml(tracked.record, run_id=tracked.run_id)
    return parse_recipe(text, file=f"run {source}", overrides=overrides, check_data=check_data)


def train_seeds(
    file: RecipeFile,
    *,
    seeds: int,
    download: bool,
    on_progress: Callable[[int, int], None],
    on_line: Callable[[str], None],
) -> TrialRecord:
    """Trains the recipe with `seeds` seeds, one after the other, and returns all runs in a record.

    Raises: ConfigError, DataError.
    """
    data = prepare(file.workload.dataset, download=download, on_progress=on_progress)
    recipe = file.recipe.model_dump(mode="json")
    threads = file.run.cpu_threads or psutil.cpu_count(logical=False) or 1
    records = []
    for seed in range(file.run.seed, file.run.seed + seeds):
        spec = TrialSpec(
            study=file.name,
            trial_id="t0000",
            params={},
            recipe=file.recipe,
            workload=file.workload,
            workload_hash=file.workload.identity(data_hash=data.data_hash),
            space_hash=canonical_hash(recipe),
            seed=seed,
            allotment=Allotment(device=file.run.device, cpu_threads=threads),
        )
        trial = run_trial(spec, refuse=(TuneSpeedError,))
        record = finish(trial, on_report=lambda record: on_line(progress_line(record)))
        on_line(progress_line(record))
        on_line(f"seed {seed}: {record.status.value}, {record.stop_reason}")
        records.append(record)
    runs = tuple(run for record in records for run in record.runs)
    return records[-1].model_copy(update={"runs": runs, "started_at": records[0].started_at})


def progress_line(record: TrialRecord) -> str:
    """Returns one line on where a run stands."""
    run = record.runs[-1]
    if run.final is None:
        return f"seed {run.seed}: no evaluation"
    e = run.final
    loss = "–" if e.loss is None else f"{e.loss:.4f}"
    return (
        f"seed {run.seed}: epoch {e.epoch:.2f}  step {e.step}  train_s {e.train_s:.2f}"
        f"  accuracy {e.accuracy:.4f}  macro_f1 {e.macro_f1:.4f}  loss {loss}"
    )


def summarise(record: TrialRecord) -> str:
    """Returns what the runs say together: hits, time to target, accuracy, speed."""
    runs, n = record.runs, len(record.runs)
    hits = sum(run.status == Status.REACHED for run in runs)
    low, high = wilson_interval(hits, n)
    median_s = median_time_s([run.time_to_target_s for run in runs])
    accuracies = [run.final.accuracy for run in runs if run.final is not None]
    times = [f"{run.time_to_target_s:.3f}" for run in runs if run.time_to_target_s is not None]
    target = record.workload["target"]
    lines = [
        f"{record.workload_name}: {target['metric']} ≥ {target['value']:g} on {record.device}",
        f"  met the target   {hits}/{n}  (95 % interval of the rate: {low:.2f} to {high:.2f})",
        f"  time to target   median {'∞' if median_s is None else f'{median_s:.3f} s'}"
        f" with misses as ∞; hits: {', '.join(times) or 'none'}",
    ]
    if accuracies:
        spread = f" ± {statistics.stdev(accuracies):.4f} (sd)" if len(accuracies) > 1 else ""
        mean = math.fsum(accuracies) / len(accuracies)
        lines.append(f"  final accuracy   {mean:.6f}{spread}, n = {len(accuracies)}")
    last = runs[-1]
    if last.images_per_s is not None:
        lines.append(f"  speed            {last.images_per_s:.0f} images/s, {last.steps} steps")
    return "\n".join(lines)

"""Trains one recipe in this process, from a file or from a recorded trial."""

import re
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

import psutil

from tune_speed.core.config import canonical_hash
from tune_speed.core.errors import TuneSpeedError
from tune_speed.core.records import TrialRecord
from tune_speed.core.text import fixed
from tune_speed.data.cache import prepare
from tune_speed.reporting.trials.recipe_export import recipe_yaml
from tune_speed.runtime.process import stop_signals
from tune_speed.study.file import RecipeFile, is_file, load_recipe, parse_recipe
from tune_speed.training.distributed.local import run_here
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import finish
from tune_speed.training.trial import Allotment, TrialSpec

_RUN_ID = re.compile(r"[0-9a-f]{32}|[\w.-]+/t\d{4,}")


class Training(NamedTuple):
    """Finished runs of one recipe."""

    record: TrialRecord | None
    """All finished runs; None if there is none."""
    was_stopped: bool
    """Whether Ctrl-C ended it; the run that it interrupted is left out."""


def load_rerun(source: str, *, overrides: Sequence[str], check_data: bool) -> RecipeFile:
    """Returns the recipe of a file, or that of a trial named by MLflow run id or STUDY/TRIAL.

    MLflow is read only where `source` is no file and looks like such a name. With `check_data`
    False the data set may still have to be downloaded.
    """
    if is_file(source) or not _RUN_ID.fullmatch(source):
        return load_recipe(source, overrides=overrides, check_data=check_data)
    from tune_speed.tracking.reader.queries import find_trial
    from tune_speed.tracking.store.uri import tracking_uri

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
) -> Training:
    """Trains the recipe with `seeds` seeds, one after the other; Ctrl-C keeps finished runs.

    Raises: ConfigError, DataError.
    """
    records: list[TrialRecord] = []
    try:
        data = prepare(file.workload.dataset, download=download, on_progress=on_progress)
        with stop_signals(signal.SIGINT) as is_stopped:
            for seed in range(file.run.seed, file.run.seed + seeds):
                record = train_once(
                    file,
                    data_hash=data.data_hash,
                    seed=seed,
                    on_line=on_line,
                    interrupt=is_stopped,
                )
                records.append(record)
                show_end(record, on_line)
    except (KeyboardInterrupt, Interrupted):
        return Training(merged(records), was_stopped=True)
    return Training(merged(records), was_stopped=False)


def train_once(
    file: RecipeFile,
    *,
    data_hash: str,
    seed: int,
    on_line: Callable[[str], None],
    refuse: tuple[type[Exception], ...] = (TuneSpeedError,),
    interrupt: Callable[[], bool] = lambda: False,
) -> TrialRecord:
    """Trains the recipe with one seed, in this process; `show_end` reports its end.

    Raises: errors of the kinds in `refuse`; any other becomes the outcome.
    """
    recipe = file.recipe.model_dump(mode="json")
    spec = TrialSpec(
        study=file.name,
        trial_id="t0000",
        params={},
        recipe=file.recipe,
        workload=file.workload,
        workload_hash=file.workload.identity(data_hash=data_hash),
        space_hash=canonical_hash(recipe),
        seed=seed,
        allotment=Allotment(device=file.run.device, cpu_threads=cpu_threads(file)),
    )
    trial = run_here(spec, interrupt=interrupt, refuse=refuse)
    return finish(trial, on_report=lambda record: on_line(progress_line(record)))


def show_end(record: TrialRecord, on_line: Callable[[str], None]) -> None:
    """Reports how a run ended."""
    on_line(progress_line(record))
    on_line(f"seed {record.runs[-1].seed}: {record.status.value}, {record.stop_reason}")


def cpu_threads(file: RecipeFile) -> int:
    """Returns the threads of one operation on the CPU: by default the cores, shared by devices."""
    # psutil returns None where it cannot tell the physical cores.
    cores = psutil.cpu_count(logical=False) or 1
    return file.run.cpu_threads or max(1, cores // file.recipe.devices)


def merged(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Returns one record with the runs of all and the last one's status; None without records."""
    if not records:
        return None
    runs = tuple(run for record in records for run in record.runs)
    return records[-1].model_copy(update={"runs": runs, "started_at": records[0].started_at})


def progress_line(record: TrialRecord) -> str:
    """Returns one line with the newest evaluation of a run."""
    run = record.runs[-1]
    if run.final is None:
        return f"seed {run.seed}: no evaluation"
    e = run.final
    scores = {"accuracy": e.accuracy, "macro_f1": e.macro_f1, **e.values, "loss": e.loss}
    shown = (f"{name} {fixed(score, 4)}" for name, score in scores.items())
    head = f"seed {run.seed}: epoch {e.epoch:.2f}  step {e.step}  train_s {e.train_s:.2f}"
    return "  ".join([head, *shown])

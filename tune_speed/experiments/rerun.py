"""Trains one recipe in this process, or two in turns: from files, or from recorded trials."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import psutil

from tune_speed.core.config import canonical_hash, flatten
from tune_speed.core.errors import ConfigError, Problem, TuneSpeedError
from tune_speed.core.records import TrialRecord, ended_as
from tune_speed.core.text import fixed, setting
from tune_speed.data.cache import prepare
from tune_speed.experiments.session import left_text, rounds, stoppable
from tune_speed.reporting.trials.recipe_export import recipe_yaml
from tune_speed.runtime.device import resolve_device
from tune_speed.study.file import RecipeFile, is_file, load_recipe, parse_recipe
from tune_speed.training.distributed.local import run_here
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import finish
from tune_speed.training.trial import Allotment, TrialSpec

_RUN_ID = re.compile(r"[0-9a-f]{32}|[\w.-]+/t\d{4,}")


class Training(NamedTuple):
    """Finished runs of one recipe, or of two."""

    a: TrialRecord | None
    """All finished runs of the first recipe; None if there is none."""
    b: TrialRecord | None
    was_stopped: bool
    """Whether Ctrl-C ended it; the run that it interrupted is left out."""


def load_rerun(source: str, *, overrides: Sequence[str], check_data: bool) -> RecipeFile:
    """MLflow is read only where `source` is no file, and is a run id or STUDY/TRIAL."""
    if is_file(source) or not _RUN_ID.fullmatch(source):
        return load_recipe(source, overrides=overrides, check_data=check_data)
    from tune_speed.tracking.reader.queries import find_trial
    from tune_speed.tracking.store.store import Store

    tracked = find_trial(Store(), source)
    text = recipe_yaml(tracked.record, run_id=tracked.run_id)
    return parse_recipe(text, file=f"run {source}", overrides=overrides, check_data=check_data)


def train_seeds(
    a: RecipeFile,
    b: RecipeFile | None = None,
    *,
    seeds: int,
    download: bool,
    on_progress: Callable[[int, int], None],
    on_line: Callable[[str], None],
) -> Training:
    """Trains one recipe, or two in turns with the same seeds; Ctrl-C keeps finished runs.

    Raises: ConfigError, also if the two cannot be compared; DataError.
    """
    files = {"a": a} if b is None else {"a": a, "b": b}
    if b is not None:
        _refuse_unequal(a, b)
    records: dict[str, list[TrialRecord]] = {"a": [], "b": []}
    with stoppable(Interrupted) as stop:
        data_hash = _prepared(files.values(), download=download, on_progress=on_progress)
        turns = list(rounds(tuple(files), range(a.run.seed, a.run.seed + seeds)))
        for number, (_, seed, side) in enumerate(turns, start=1):
            say = on_line if b is None else partial(_say_of, side, on_line)
            record = train_once(
                files[side], data_hash=data_hash, seed=seed, on_line=say, interrupt=stop.came
            )
            records[side].append(record)
            say(progress_line(record))
            left = left_text(len(turns) - number, [*records["a"], *records["b"]])
            more = f"  ({left})" if len(turns) > 1 else ""
            say(f"seed {seed}: {ended_as(record)}, {record.stop_reason}{more}")
    return Training(merged(records["a"]), merged(records["b"]), stop.was_stopped)


def _say_of(side: str, on_line: Callable[[str], None], line: str) -> None:
    on_line(f"{side.upper()}  {line}")


def _refuse_unequal(a: RecipeFile, b: RecipeFile) -> None:
    ours, theirs = _common_fields(a), _common_fields(b)
    paths = [path for path in dict.fromkeys([*ours, *theirs]) if ours.get(path) != theirs.get(path)]
    problems = tuple(
        Problem(
            path=path,
            must="must be the same for both recipes",
            given=f"{ours.get(path, 'nothing')} in {a.file} and"
            f" {theirs.get(path, 'nothing')} in {b.file}",
            hint=f"`{setting(path, 'VALUE')}` applies to both.",
        )
        for path in paths
    )
    if problems:
        raise ConfigError("Times compare within one workload and device only.", problems=problems)


def _common_fields(file: RecipeFile) -> Mapping[str, Any]:
    # Where the data lies may differ: `_prepared` compares its hash.
    fields = flatten({"workload": file.workload.task_fields()})
    device = resolve_device(file.run.device)
    threads = {"run.cpu_threads": cpu_threads(file)} if device.type == "cpu" else {}
    return {**fields, "run.device": str(device), **threads}


def _prepared(
    files: Collection[RecipeFile], *, download: bool, on_progress: Callable[[int, int], None]
) -> str:
    read = partial(prepare, download=download, on_progress=on_progress)
    hashes = {read(file.workload.dataset).data_hash: file.file for file in files}
    if len(hashes) > 1:
        must = "must hold the same images and labels for both recipes"
        given = "data " + " and ".join(f"{each} in {file}" for each, file in hashes.items())
        raise ConfigError.of("workload.dataset", must, given=given)
    return next(iter(hashes))


def train_once(
    file: RecipeFile,
    *,
    data_hash: str,
    seed: int,
    on_line: Callable[[str], None],
    refuse: tuple[type[Exception], ...] = (TuneSpeedError,),
    interrupt: Callable[[], bool] = lambda: False,
) -> TrialRecord:
    """Raises: errors of the kinds in `refuse`; any other becomes the outcome."""
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
        keep=file.keep,
    )
    trial = run_here(spec, interrupt=interrupt, refuse=refuse)
    return finish(trial, on_report=lambda record: on_line(progress_line(record)))


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
    run = record.runs[-1]
    if run.final is None:
        return f"seed {run.seed}: no evaluation"
    e = run.final
    scores = {"accuracy": e.accuracy, "macro_f1": e.macro_f1, **e.values, "loss": e.loss}
    shown = (f"{name} {fixed(score, 4)}" for name, score in scores.items())
    head = f"seed {run.seed}: epoch {e.epoch:.2f}  step {e.step}  train_s {e.train_s:.2f}"
    return "  ".join([head, *shown])

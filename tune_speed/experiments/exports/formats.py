"""A trial's recipe as a file for others' tools."""

from pathlib import Path

from pydantic import ValidationError

from tune_speed.core.comparability import Totals
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import TrialRecord
from tune_speed.core.text import printable
from tune_speed.experiments.exports.script import LIGHTNING, SCRIPT, script
from tune_speed.experiments.exports.timm_arguments import timm_arguments
from tune_speed.reporting.trials.recipe_export import origin_comment, recipe_that_ran
from tune_speed.study.file import RecipeFile
from tune_speed.study.settings import RunConfig
from tune_speed.training.workload import Workload


def exported(
    record: TrialRecord,
    form: str,
    *,
    path: Path,
    run_id: str | None,
    search: Totals | None,
    rerun: str,
) -> str:
    """Returns the text of a file that repeats the record's last run, to be written to `path`.

    Raises: ConfigError that names every field that the form cannot carry, or if the record has no
        recipe of this version; DataError if the form needs data that are missing.
    """
    name = printable(f"{record.study}/{record.trial_id}"[:200])
    if record.plugins:
        raise ConfigError(
            f"{name} must be a trial without plugins for a file that runs without tune_speed, but"
            f" it has {printable(', '.join(record.plugins))[:200]}. Export it as .yaml."
        )
    file = _file_of(record, name)
    origin = origin_comment(record, run_id=run_id, search=search, rerun=rerun)
    if form == "timm":
        return timm_arguments(file, origin=origin)
    layout = LIGHTNING if form == "lightning" else SCRIPT
    return script(file, form=layout, origin=origin, path=str(path))


def _file_of(record: TrialRecord, name: str) -> RecipeFile:
    recipe = recipe_that_ran(record)
    try:
        workload = Workload.model_validate(record.workload)
        seed, threads = record.runs[-1].seed, record.cpu_threads
        run = RunConfig(seed=seed, cpu_threads=threads, device=record.device.kind)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        must = "must be one that this version writes"
        raise ConfigError(f"the workload of {name} {must}, but: {problems[:1000]}") from error
    return RecipeFile(
        name=record.study,
        tree={},
        text="",
        file=name,
        workload=workload,
        recipe=recipe,
        run=run,
        ablate=None,
    )

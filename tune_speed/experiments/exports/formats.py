"""A trial's recipe as a file for others' tools."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tune_speed.core.comparability import Totals
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import TrialRecord
from tune_speed.experiments.exports.lightning import lightning_script
from tune_speed.experiments.exports.script import script
from tune_speed.experiments.exports.timm_arguments import timm_arguments
from tune_speed.reporting.trials.recipe_export import origin_comment, recipe_yaml
from tune_speed.study.file import parse_recipe

SCRIPTS: Mapping[str, Callable[..., str]] = {"script": script, "lightning": lightning_script}


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

    `form` is `script`, `lightning` or `timm`; `run_id`, `search` and `rerun` are for the comment at
    its head, as of `recipe_yaml`.

    Raises: ConfigError that names every field that the form cannot carry, or if the record has no
        recipe of this version; DataError if the form needs data that are missing.
    """
    text = recipe_yaml(record, run_id=run_id)
    file = parse_recipe(text, file=f"{record.study}/{record.trial_id}", check_data=False)
    if record.plugins:
        raise ConfigError(
            f"{record.study}/{record.trial_id} must be a trial without plugins for a file that runs"
            f" without tune_speed, but it has {', '.join(record.plugins)}. Export it as .yaml."
        )
    origin = origin_comment(record, run_id=run_id, search=search, rerun=rerun)
    if form == "timm":
        return timm_arguments(file, origin=origin)
    return SCRIPTS[form](file, origin=origin, path=str(path))

"""A recipe as a file: what to train again, headed by its origin and how far to trust it."""

from pydantic import ValidationError

from tune_speed.components.plugins import registry
from tune_speed.core.comparability import Totals, target_of
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Recommended, TrialRecord, named_settings
from tune_speed.core.text import counted, device_text, printable
from tune_speed.reporting.leaderboard.ranking import Row, make_row
from tune_speed.reporting.leaderboard.text import interval_text
from tune_speed.study.yaml import dump_yaml
from tune_speed.training.recipe import Recipe


def origin_comment(
    record: TrialRecord, *, run_id: str | None, search: Totals | None, rerun: str | None
) -> str:
    """Returns lines that begin with `#`: where a recipe comes from, and how far to believe it."""
    lines = _origin(record, run_id=run_id, search=search, rerun=rerun)
    # A name with a line break in it must not get out of the comment.
    return "\n".join(f"# {printable(' '.join(line.split()))}" for line in lines)


def _origin(
    record: TrialRecord, *, run_id: str | None, search: Totals | None, rerun: str | None
) -> list[str]:
    row = make_row(record, run_id=run_id, search=search)
    environment = record.environment
    found = f"found in a search of {counted(row.study_trials or 0, 'trial')}"
    held = "" if row.study_device_s is None else f", {row.study_device_s:.0f} device-seconds"
    return [
        f"{record.study}/{record.trial_id}, MLflow run {run_id or 'none'}",
        _result(record, row),
        f"finished {record.finished_at}, tune_speed {environment.get('tune_speed')}",
        f"torch {environment.get('torch')}, commit {environment.get('commit')}",
        f"target: {target_of(record.workload).words}, {record.workload.get('mode')}, on the"
        f" {record.evaluated_on} part of {record.workload_name}; workload {record.workload_hash},"
        f" search space {record.space_hash}, protocol {record.protocol_version}",
        *([] if row.study_trials is None else [f"{found}{held}"]),
        *([f"train it: {rerun}"] if rerun else []),
    ]


def _result(record: TrialRecord, row: Row) -> str:
    if row.n == 1:
        time_s = row.time_to_target_s
        time = "no time" if time_s is None else f"{time_s:.3f} s"
        return (
            f"{record.verdict}: {record.status.value}, {time} to target on"
            f" {device_text(record.device)}, this run alone, without the spread over"
            f" seeds; clock: {row.timing}"
        )
    expected = interval_text(row.expected_s, row.expected_low_s, row.expected_high_s)
    median = interval_text(row.time_to_target_s, row.median_low_s, row.median_high_s)
    return (
        f"{record.verdict}: {row.hits} of {counted(row.n, 'run')} met the target (95 % interval of"
        f" the rate: {row.hit_rate_low:.2f}–{row.hit_rate_high:.2f}); expected time with restarts"
        f" {expected} s, median {median} s, on {device_text(record.device)}; clock: {row.timing}"
    )


def recipe_that_ran(record: TrialRecord) -> Recipe:
    """Returns the recipe with its last micro-batch. Raises: ConfigError without such a one."""
    if record.is_own_loop:
        raise ConfigError(
            f"{_name(record)} must be a trial of a recipe, but it was made by a training function,"
            " which has no recipe to train. Use it with `tune-speed search` or `certify` and"
            " --train FILE.py:FUNCTION; in Python, call tune_speed.search(train=…) or"
            f" tune_speed.certify({printable(record.study)[:200]!r}, train=…) with that function."
        )
    # Without its plugins a recipe's names would be unknown, or mean another's entries.
    registry.expect(record.plugins, of=_name(record))
    batch_size = record.runs[-1].batch_size
    try:
        recipe = Recipe.model_validate(record.recipe)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise _not_ours(record, problems) from error
    if record.runs[-1].normalisation is None and recipe.model.normalisation(in_channels=3):
        # That of a run that never evaluated is not known: such a recipe stays as it is.
        by_data = recipe.model.model_copy(update={"normalise_by": "data"})
        recipe = recipe.model_copy(update={"model": by_data}) if record.runs[-1].final else recipe
    if batch_size is None:
        return recipe
    if batch_size < 1 or recipe.samples_per_step // recipe.devices % batch_size:
        raise _not_ours(record, f"no step of it has micro-batches of {batch_size}")
    return recipe.with_micro_batch(batch_size)


def recipe_yaml(
    record: TrialRecord,
    *,
    run_id: str | None,
    search: Totals | None = None,
    rerun: str | None = None,
    known: Recommended | None = None,
) -> str:
    """Returns a file for `tune-speed train` that repeats the record's last run, with its seed.

    Its first lines say where it comes from and how far to believe it: `search` is what the trials
    of its search come to (None: not known), `rerun` trains the file, `known` is what all runs of
    its configuration say.
    """
    run = record.runs[-1]
    recipe = recipe_that_ran(record)
    tree = {
        "study": record.study,
        "workload": record.workload,
        "recipe": recipe.model_dump(mode="json", exclude_none=True),
        "run": {"seed": run.seed, "cpu_threads": record.cpu_threads, "device": record.device.kind},
    }
    origin = origin_comment(record, run_id=run_id, search=search, rerun=rerun)
    if known is not None and known.trial_id == record.trial_id:
        origin += f"\n# recommended: {printable(known.text)}"
    try:
        return f"{origin}\n{dump_yaml(tree)}"
    except ValueError as error:
        raise _not_ours(record, str(error)) from error


def called_with(record: TrialRecord) -> str:
    """Returns what a training function was called with, as YAML. Raises: ConfigError."""
    name = printable(record.workload_name)[:200]
    try:
        values = dump_yaml(dict(named_settings(record.recipe)))
    except ValueError as error:
        raise _not_ours(record, str(error)) from error
    return f"# {_name(record)}: what the training function of {name} was called with\n{values}"


def _not_ours(record: TrialRecord, why: str) -> ConfigError:
    must = "must be one that this version writes"
    # Cut, as a stranger's record decides how long it is.
    return ConfigError(f"the recipe of {_name(record)} {must}, but: {why.strip()[:1000]}")


def _name(record: TrialRecord) -> str:
    return printable(f"{record.study}/{record.trial_id}"[:200])

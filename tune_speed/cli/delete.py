"""The command `delete`."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from tune_speed.cli import common, completion
from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.core.text import counted


def delete(
    study: Annotated[
        str, typer.Argument(help="The study's name.", autocompletion=completion.studies)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Delete a study: its folder for good, its trials in MLflow into MLflow's trash.

    Example: tune-speed delete my_first_try
    """
    from tune_speed.core.config import did_you_mean
    from tune_speed.core.folders import studies_folder
    from tune_speed.study.schema import check_study_name
    from tune_speed.tracking.notes import discard_study
    from tune_speed.tracking.reader.studies import list_studies
    from tune_speed.tracking.store.uri import tracking_uri

    check_study_name(study)
    uri, folder = tracking_uri(), studies_folder() / study
    studies = {each.name: each for each in list_studies(uri)}
    found = studies.get(study)
    if found is None and not folder.is_dir() and not folder.is_symlink():
        near = did_you_mean(study, studies) or "."
        raise ConfigError(
            f"study {study!r} must be in the store, or have a folder in {folder.parent}, to be"
            f" deleted{near} `tune-speed list studies` lists all."
        )
    trials = sum(found.num_trials.values()) if found else 0
    _refuse_while_used(folder)
    _confirm(f"Delete {study}, {counted(trials, 'trial')} on record, and {folder}?", yes=yes)
    _refuse_while_used(folder)
    # The store first: the study can still be resumed from its folder if that fails.
    trash = discard_study(uri, found.experiment_id, study) if found else None
    _remove(folder)
    if as_json:
        common.say_json({"study": study, "trials": trials, "in_mlflow_trash": trash})
        return
    rest = f"; in MLflow's trash: {trash}" if trash else ""
    common.say(f"deleted {study}, {counted(trials, 'trial')} on record{rest}")


def _refuse_while_used(folder: Path) -> None:
    """Raises: ConfigError if a search, a certification or an ablation of the study runs."""
    from tune_speed.core.event_log import EventLog, LogAdvice

    advice = LogAdvice(locked="Stop it first: Ctrl-C there.")
    # Of a search, and of what is run in folders of their own.
    for log in (*folder.glob("*.jsonl"), *folder.glob("*/*.jsonl")):
        if log.is_file() and not log.is_symlink():
            EventLog(log, what="a study", advice=advice).close()


def _remove(folder: Path) -> None:
    try:
        if folder.is_symlink():
            # What it leads to may hold more than the study.
            common.note(f"{folder} was a link; {os.readlink(folder)} is kept")
            folder.unlink()
        elif folder.is_dir():
            shutil.rmtree(folder)
    except OSError as error:
        raise StorageError(f"{folder} cannot be removed: {error.strerror or error}.") from error


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError("a study must not be deleted without a question: give --yes.")
    if not typer.confirm(question, err=True):
        raise typer.Exit(common.NOT_REACHED)

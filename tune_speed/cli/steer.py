"""The commands that change a study: `try` and `steer` while it runs, `note`, `delete`."""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tune_speed.cli import common
from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.core.text import counted

if TYPE_CHECKING:
    from tune_speed.tuning.driver.requests import Answer

StudyArgument = Annotated[str, typer.Argument(help="A study that is searched, by its name.")]

Action = Literal["stop", "pause", "go-on", "set"]


def try_(
    study: StudyArgument,
    values: Annotated[
        list[str], typer.Argument(metavar="PATH=VALUE…", help="What is given; `lr=0.3` will do.")
    ],
    as_json: common.JsonOption = False,
) -> None:
    """Add a trial to a running search, the next to begin; it is one of its number of trials.

    What is left out is as in the recommended configuration; before there is one, the search
    chooses.

    Example: tune-speed try digits_quickstart lr=0.3 epochs=8
    """
    _send(study, {"action": "try", "params": _values(values)}, as_json=as_json)


def steer(
    study: StudyArgument,
    action: Annotated[
        Action | None, typer.Argument(help="What to do; without it, list what was done.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="TRIAL or NAME=VALUE…", help="Of stop: a trial. Of set: settings."),
    ] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Steer a running search: stop a trial, pause, go on, or change what it is to do.

    Settings are trials, concurrent and time_budget. The search acts within two seconds; one that
    was killed before acts when it is resumed.

    Example: tune-speed steer digits_quickstart set concurrent=4 trials=60
    """
    given = values or []
    if action is None:
        _list(study, as_json=as_json)
        return
    request: dict[str, Any] = {"action": action}
    if action == "stop":
        if len(given) != 1:
            raise ConfigError(f"`stop` must have one trial, but got {len(given)}.")
        request["trial"] = given[0].removeprefix(f"{study}/")
    elif action == "set":
        request |= _values(given)
    elif given:
        raise ConfigError(f"`{action}` must stand alone, but got {' '.join(given)}.")
    _send(study, request, as_json=as_json)


def _values(given: list[str]) -> dict[str, Any]:
    from tune_speed.study.overrides import read_override

    found = {}
    for text in given:
        try:
            name, found_value = read_override(text)
        except ConfigError as error:
            raise ConfigError(f"{text}: {error}") from None
        found[name] = found_value
    return found


def _send(study: str, request: dict[str, Any], *, as_json: bool) -> None:
    from tune_speed.tuning.driver import control

    answer: Answer = control.send(study, request)
    if as_json:
        common.say_json(answer.as_dict())
    else:
        common.say(answer.words)


def _list(study: str, *, as_json: bool) -> None:
    from tune_speed.tuning.driver import control

    done = control.history(study)
    if as_json:
        common.say_json(done)
        return
    runs = control.is_driven(control.folder_of(study))
    when = "the search has not" if runs else "the next search with --resume"
    when += " acted on it yet" if runs else " acts on it"
    for each in done:
        came = each["answer"] or f"waits: {when}"
        refused = "refused, " if each["refused"] else ""
        common.say(f"{each['at'][:19].replace('T', ' ')}  {each['words']}: {refused}{came}")
    if not done:
        common.note(f"{study} was not steered")


def note(
    trial: Annotated[
        str,
        typer.Argument(
            help="A trial, STUDY/TRIAL or an MLflow run id; or a study, to list.",
            autocompletion=common.studies_and_trials,
        ),
    ],
    text: Annotated[str | None, typer.Argument(help="What to note; '' removes it.")] = None,
    star: Annotated[
        bool | None, typer.Option("--star/--no-star", help="Mark it with a star, or no longer.")
    ] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Note something on a trial, give it a star, or list a study's notes.

    Example: tune-speed note digits_quickstart/t0007 'plateaus early' --star
    """
    from tune_speed.tracking.notes import read_notes, write_note

    store = common.store()
    if text is not None or star is not None:
        name, said = write_note(store, trial, text=text, star=star)
        notes = {name: said}
    elif "/" in trial:
        raise ConfigError("a note on a trial must have a text or --star; `show` shows what it has.")
    else:
        notes = {f"{trial}/{key}": said for key, said in read_notes(store, trial).items()}
    if as_json:
        common.say_json({name: said._asdict() for name, said in notes.items()})
        return
    for name, said in notes.items():
        common.say(f"{name}  {str(said) or 'no note'}")
    if not notes:
        common.note(f"no notes in {trial}")


def delete(
    study: Annotated[str, typer.Argument(help="The study's name.", autocompletion=common.studies)],
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

    check_study_name(study)
    store, folder = common.store(), studies_folder() / study
    studies = {each.name: each for each in list_studies(store)}
    found = studies.get(study)
    if found is None and not folder.is_dir() and not folder.is_symlink():
        near = did_you_mean(study, studies) or "."
        raise ConfigError(
            f"study {study!r} must be in the store, or have a folder in {folder.parent}, to be"
            f" deleted{near} `tune-speed list studies` lists all."
        )
    trials = sum(found.num_trials.values()) if found else 0
    _refuse_while_used(folder)
    if not yes and not sys.stdin.isatty():
        raise ConfigError("a study must not be deleted without a question: give --yes.")
    question = f"Delete {study}, {counted(trials, 'trial')} on record, and {folder}?"
    if not yes and not typer.confirm(question, err=True):
        raise typer.Exit(common.NOT_REACHED)
    _refuse_while_used(folder)
    # The store first: the study can still be resumed from its folder if that fails.
    trash = discard_study(store, found.experiment_id, study) if found else None
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

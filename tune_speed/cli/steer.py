"""The commands on a search that runs: `try` and `steer`."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tune_speed.cli import common
from tune_speed.core.errors import ConfigError

if TYPE_CHECKING:
    from tune_speed.tuning.driver.requests import Answer

StudyArgument = Annotated[str, typer.Argument(help="A study that is searched, by its name.")]


class Action(StrEnum):
    """What can be asked of a running search."""

    STOP = "stop"
    PAUSE = "pause"
    GO_ON = "go-on"
    SET = "set"


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
    request: dict[str, Any] = {"action": action.value}
    if action is Action.STOP:
        if len(given) != 1:
            raise ConfigError(f"`stop` must have one trial, but got {len(given)}.")
        request["trial"] = given[0].removeprefix(f"{study}/")
    elif action is Action.SET:
        request |= _values(given)
    elif given:
        raise ConfigError(f"`{action.value}` must stand alone, but got {' '.join(given)}.")
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

"""The command `note`."""

from typing import Annotated

import typer

from tune_speed.cli import common, completion
from tune_speed.core.errors import ConfigError


def note(
    trial: Annotated[
        str,
        typer.Argument(
            help="A trial, STUDY/TRIAL or an MLflow run id; or a study, to list.",
            autocompletion=completion.studies_and_trials,
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
    from tune_speed.tracking.store.uri import tracking_uri

    uri = tracking_uri()
    if text is not None or star is not None:
        name, said = write_note(uri, trial, text=text, star=star)
        notes = {name: said}
    elif "/" in trial:
        raise ConfigError("a note on a trial must have a text or --star; `show` shows what it has.")
    else:
        notes = {f"{trial}/{key}": said for key, said in read_notes(uri, trial).items()}
    if as_json:
        common.say_json({name: said._asdict() for name, said in notes.items()})
        return
    for name, said in notes.items():
        common.say(f"{name}  {str(said) or 'no note'}")
    if not notes:
        common.note(f"no notes in {trial}")

"""The commands `init`, `search` and `certify`."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tune_speed.cli import common
from tune_speed.core.errors import TuneSpeedError
from tune_speed.core.redact import redact

if TYPE_CHECKING:
    from tune_speed.api.certified import Certified
    from tune_speed.api.study import Study

AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", help="Ray cluster: auto, HOST:PORT or ray://HOST:PORT; default: a local one."
    ),
]


def search(
    space: Annotated[
        str,
        typer.Argument(
            help="A study file, or the name of a shipped one.", autocompletion=common.files
        ),
    ],
    trials: Annotated[int | None, typer.Option(help="Trials in all.")] = None,
    time_budget: Annotated[
        str | None,
        typer.Option(help="Time for the search, such as 90s or 30m; what runs then is stopped."),
    ] = None,
    concurrent: Annotated[
        str | None,
        typer.Option(help="Trials at the same time; auto: as many as finish most an hour."),
    ] = None,
    address: AddressOption = None,
    train: common.TrainOption = None,
    set_: common.SetOption = None,
    plugin: common.PluginOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume this study; no finished trial runs again.")
    ] = False,
    from_mlflow: Annotated[
        bool, typer.Option("--from-mlflow", help="Rebuild a lost ledger from MLflow, then resume.")
    ] = False,
    download: common.DownloadOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also say why trials were proposed and ended.")
    ] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Search for the recipe that reaches the target soonest; ends with a leaderboard.

    The recommended recipe, or that of the nearest miss, is written to best.yaml, for `train`.

    With --train the values under `recipe` are those of a training function of your own, and
    `workload` has the target, `mode` and `max_train_s`.

    Example: tune-speed search digits_quickstart --trials 40 --set search.sampler=gp
    """
    from tune_speed.api import calls
    from tune_speed.api.shown import Boards

    def searched(found: "Study") -> None:
        # Called between search and certification, so that the answer does not wait for the latter.
        if not as_json:
            steps = found.next_steps(certify=_certify_command(found.name, train))
            common.show_parts([Boards(found.boards), steps], piped_width=common.BOARD_WIDTH)
        if found.to_train is not None and found.loop is None:
            file = _file_of_best(found.name)
            try:
                common.write_recipe(
                    file, found.to_train, run_id=None, form="yaml", known=found.recommended
                )
            except TuneSpeedError as error:
                # A folder that takes no file is no reason for a search to fail.
                common.note(str(error))

    # As texts, so that `2`, `90s` and `auto` mean what they mean in a study file.
    options = {"trials": trials, "time_budget": time_budget, "concurrent": concurrent}
    given = [f"search.{name}={value}" for name, value in options.items() if value is not None]
    found = calls.search(
        space,
        train=_function(train, address),
        address=address,
        set=[*(set_ or []), *given],
        resume=resume,
        from_mlflow=from_mlflow,
        download=download,
        progress=common.on_stderr(on_searched=searched, is_verbose=verbose),
    )
    if as_json:
        common.say(found.to_json())
    if found.was_stopped:
        from tune_speed.tuning.services import arguments_of_a_new_search

        again = shlex.join(arguments_of_a_new_search())
        # Redacted, as `--set search.storage=…` may hold a database's password.
        common.note(redact(f"stopped; resume with: tune-speed {again} --resume"))
        raise typer.Exit(common.INTERRUPTED)
    if found.certification is not None:
        _end_of_certification(found.certification, train, is_shown=not as_json)
    if found.best is None:
        raise typer.Exit(common.NOT_REACHED)


def certify(
    study: common.StudyArgument,
    top: Annotated[int, typer.Option(min=1, help="Fastest estimates to run again.")] = 5,
    seeds: Annotated[int, typer.Option(min=1, help="Fresh seeds of each.")] = 5,
    final: Annotated[int, typer.Option(min=0, help="How many reach the final.")] = 2,
    final_seeds: Annotated[int, typer.Option(min=1, help="Fresh seeds of each in it.")] = 20,
    train: common.TrainOption = None,
    device: common.DeviceOption = None,
    plugin: common.PluginOption = None,
    address: AddressOption = None,
    again: Annotated[
        bool, typer.Option("--again", help="Start over, with other seeds, where one was begun.")
    ] = False,
    save: common.SaveOption = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Begin on a busy machine without a question.")
    ] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Run a study's fastest again with fresh seeds, alone on the device, on the test part.

    Given again, it resumes where it stopped. A study of a training function needs --train.

    Example: tune-speed certify digits_quickstart --top 3 --seeds 3 --final 2 --final-seeds 5
    """
    from tune_speed.api import study as studies
    from tune_speed.runtime.process import busy_text

    busy = "" if anyway or address or not sys.stdin.isatty() else busy_text(threads=1)
    if busy and not typer.confirm(f"{busy}. Certify anyway?", err=True):
        raise typer.Exit(common.NOT_REACHED)
    found = studies.certify(
        study,
        train=_function(train, address),
        top=top,
        seeds=seeds,
        final=final,
        final_seeds=final_seeds,
        device=device,
        address=address,
        again=again,
        save=save,
        progress=common.on_stderr(),
    )
    if save is not None and not found.was_stopped:
        common.note_saved(save, is_saved=bool(found.saved))
    if as_json and not found.was_stopped:
        common.say(found.to_json())
    _end_of_certification(found, train, is_shown=not as_json)


def _file_of_best(study: str) -> Path:
    """Returns `best.yaml`, unless there is such a file that no search or `best --export` wrote."""
    file = Path("best.yaml")
    is_ours = re.compile(r"# .+/t\d+, MLflow run ")
    try:
        return file if is_ours.match(file.read_text()) else Path(f"{study}_best.yaml")
    except (OSError, UnicodeDecodeError):
        return file if not file.exists() else Path(f"{study}_best.yaml")


def _function(train: str | None, address: str | None) -> Callable[..., Any] | None:
    if train is None:
        return None
    from tune_speed.api.entry import agree_on_token

    # Before the file runs: it may import Ray, which reads RAY_AUTH_MODE once, on import.
    agree_on_token(address)
    return function_of(train)


def _end_of_certification(found: "Certified", train: str | None, *, is_shown: bool) -> None:
    if found.was_stopped:
        command = _certify_command(found.study, train)
        common.note(f"stopped; resume with: {command}, and the same options")
        raise typer.Exit(common.INTERRUPTED)
    if is_shown:
        common.show(found, piped_width=common.BOARD_WIDTH)
    if found.best is None:
        raise typer.Exit(common.NOT_REACHED)


def _certify_command(study: str, train: str | None) -> str:
    return f"tune-speed certify {shlex.quote(study)}{'' if train is None else again_with(train)}"


def init(
    data: Annotated[
        str,
        typer.Argument(help="A folder with a folder of images a class, or Parquet file or folder."),
    ],
    study: Annotated[
        str | None, typer.Option("--study", help="The study's name; else that of the data.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write; else STUDY.yaml.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(min=0, max=1, help="The target; else what a plain run reaches.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Published weights to fine-tune; else those of the hub."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Network of timm; else the best known here.")
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long that run may take.  [default: 150s; icons: 60s]"
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Look for a quarter of the time.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the file.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Write a first study file for your own images, after a look at them and a short training.

    Example: tune-speed init photos
    """
    from tune_speed.api.first_study import init as write_first_study
    from tune_speed.core.errors import ConfigError
    from tune_speed.study.settings import parse_duration_s

    try:
        probe_s = None if probe is None else parse_duration_s(probe)
    except ValueError as error:
        raise ConfigError.of("--probe", str(error), given=probe) from error
    try:
        found = write_first_study(
            data,
            study=study,
            out=out,
            target=target,
            weights=weights,
            model=model,
            probe_s=probe_s,
            quick=quick,
            replace=replace,
            progress=common.on_stderr(),
        )
    except KeyboardInterrupt:
        common.note("stopped; nothing was written")
        raise typer.Exit(common.INTERRUPTED) from None
    common.show(found, as_json=as_json)


_FORM = "must be a Python file and the name of a function in it, FILE.py:FUNCTION"
_OPTION = "--train"
_ONE_FILE = (
    "The file of a training function travels alone to the workers: put both into one, or install"
    " the other, here and on all nodes."
)


def function_of(name: str) -> Callable[..., Any]:
    """Runs a Python file and returns the training function that `FILE.py:FUNCTION` names.

    Its signature is not validated.

    Raises: ConfigError if there is no such file or function, or the file does not run.
    """
    from tune_speed.components.plugins.source import read_file, refusal, run_file
    from tune_speed.study.mistake import near_miss

    path, function = _parts(name)
    file = read_file(path, must=_FORM)
    module = run_file(file, prefix="tune_speed_loop", one_file=_ONE_FILE)
    if function not in vars(module):
        # What the file imports is callable too, but not its own.
        own = [
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        ]
        there = f"There are {', '.join(own[:8])}." if own else None
        must, hint = "must have the function that --train names", near_miss(function, own) or there
        raise refusal(must, given=f"`{function}`", file=file.path, hint=hint)
    found: Callable[..., Any] = vars(module)[function]
    if not callable(found):
        must, line = f"`{function}` must be a function of (params, run)", file.line(function)
        raise refusal(must, given=f"{found!r:.80}", file=file.path, line=line)
    return found


def again_with(name: str) -> str:
    return f" {_OPTION} {shlex.quote(name)}"


def _parts(name: str) -> tuple[str, str]:
    from tune_speed.components.plugins.source import refusal

    # From the right, as a path may hold colons and a function's name cannot.
    path, colon, function = name.rpartition(":")
    if not colon:
        path, function = name, ""
    if path.endswith(".py") and function:
        return path, function
    hint = "Such as my_loop.py:my_train."
    if path.endswith(".py"):
        hint = f"Name the function too, such as {path}:my_train."
    elif function and Path(f"{path}.py").is_file():
        hint = f"Did you mean {path}.py:{function}?"
    raise refusal(_FORM, given=repr(name), file=_OPTION, hint=hint)

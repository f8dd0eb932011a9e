"""What commands share: options, forms, printing, and what a shell completes.

Control characters never reach a terminal. Completion reads this folder's files: it imports no
library and does not ask MLflow.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tune_speed.core.folders import shipped_folder, studies_folder
from tune_speed.core.text import printable_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tune_speed.api.progress import Progress
    from tune_speed.api.shown import Shown
    from tune_speed.api.study import Study
    from tune_speed.core.comparability import Totals
    from tune_speed.core.records import Recommended, TrialRecord
    from tune_speed.tracking.store.store import Store

STUDY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PROPOSED = re.compile(rb'\{"event": "proposed", "trial_id": "(t[0-9]{4,})"')
"""How a line of a ledger begins that has a trial's name."""


def studies(incomplete: str) -> list[str]:
    try:
        names = os.listdir(studies_folder())
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(incomplete) and STUDY.fullmatch(name))


def trials(incomplete: str) -> list[str]:
    """Returns the trials, STUDY/TRIAL, that begin so; before the study is clear, the studies."""
    study, slash, _ = incomplete.partition("/")
    found = [study] if slash else studies(incomplete)
    if len(found) != 1:
        return [f"{name}/" for name in found]
    return [name for name in _trials(found[0]) if name.startswith(incomplete)]


def studies_and_trials(incomplete: str) -> list[str]:
    return [*studies(incomplete), *trials(incomplete)]


def files(incomplete: str) -> list[str]:
    shipped = [path.stem for path in sorted(shipped_folder().glob("*.yaml"))]
    return [*_files(incomplete), *(name for name in shipped if name.startswith(incomplete))]


def _trials(study: str) -> Iterator[str]:
    if not STUDY.fullmatch(study):
        return
    try:
        with open(studies_folder() / study / "ledger.jsonl", "rb") as ledger:
            for line in ledger:
                if begin := PROPOSED.match(line):
                    yield f"{study}/{begin[1].decode()}"
    except OSError:
        return


def _files(incomplete: str) -> Iterator[str]:
    head, name = os.path.split(incomplete)
    try:
        entries = sorted(os.scandir(head or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        is_hidden = entry.name.startswith(".") and not name.startswith(".")
        if is_hidden or not entry.name.startswith(name) or not entry.name.isprintable():
            continue
        if entry.is_dir():
            yield f"{os.path.join(head, entry.name)}/"
        elif entry.name.endswith((".yaml", ".yml")):
            yield os.path.join(head, entry.name)


NOT_REACHED = 1
# 128 and the number of SIGINT, 2: what a shell reports for a command that Ctrl-C ended.
INTERRUPTED = 130

Format = Literal["table", "json", "csv", "markdown"]
ListFormat = Literal["table", "json", "jsonl", "csv", "parquet", "markdown"]
RecipeFormat = Literal["yaml", "script", "timm", "lightning"]


def load_plugins(context: typer.Context, names: list[str] | None) -> list[str] | None:
    """Loads what `--plugin` names, before the command looks at anything. Raises: ConfigError."""
    # Resilient: a shell completes a line that is being written.
    if names and not context.resilient_parsing:
        from tune_speed.components.plugins import registry

        registry.load(names)
    return names


def load_plugins_of_environment() -> None:
    """Loads what `TUNE_SPEED_PLUGINS` names, except for `--help`. Raises: ConfigError."""
    # `--help` imports no library but typer; a plugin imports whatever it likes.
    if os.environ.get("TUNE_SPEED_PLUGINS") and "--help" not in sys.argv:
        from tune_speed.components.plugins import registry

        registry.load_from_environment()


PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="NAME",
        callback=load_plugins,
        help="Your own models, data sets …: a Python file, or an installed distribution;"
        " repeatable.",
    ),
]
TrainOption = Annotated[
    str | None,
    typer.Option(
        "--train",
        metavar="FILE:FUNCTION",
        help="Your own training function, of which the study is: my_loop.py:my_train.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a field of the file; repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead.")]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Fetch the data set if it is missing.")
]
AgainOption = Annotated[bool, typer.Option("--again", help="Start over where one was begun.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Form of the output.")]
ExportOption = Annotated[
    Path | None,
    typer.Option(help="Write the recipe to this file: .yaml for `train`, .py a plain script."),
]
RecipeFormatOption = Annotated[
    RecipeFormat | None,
    typer.Option(
        "--format",
        help="Of the exported file, where its name does not say it: arguments of timm's train.py,"
        " or a script around Lightning's Trainer.",
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Keep the best run's network, for `predict`."),
]
RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="A recipe file, a shipped one's name, or an MLflow run id.", autocompletion=files
    ),
]
StudyArgument = Annotated[str, typer.Argument(help="A study in MLflow.", autocompletion=studies)]
StudyOption = Annotated[
    str | None, typer.Option("--study", help="Only this study.", autocompletion=studies)
]
WorkloadOption = Annotated[str | None, typer.Option("--workload", help="Only this workload.")]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Only devices whose name contains this.")
]

# Characters of a line of a leaderboard that is not shown on a terminal.
BOARD_WIDTH = 200


def note(line: str) -> None:
    """Prints a line on stderr, never as markup."""
    print(printable_lines(line), file=sys.stderr, flush=True)


def store() -> "Store":
    """Returns the store at $MLFLOW_TRACKING_URI, or that of this folder."""
    from tune_speed.tracking.store.store import Store

    return Store()


def note_saved(file: Path, *, is_saved: bool) -> None:
    if is_saved:
        note(f"saved {file}; use it: tune-speed predict {shlex.quote(str(file))} IMAGES")
    else:
        note(f"nothing is saved in {file}: no run has left a network there")


def say(text: str, *, end: str = "\n") -> None:
    print(printable_lines(text), end=end)


def say_json(value: Any) -> None:
    """Prints plain values as JSON on stdout. Raises: ValueError for NaN and infinity."""
    # Python would write `NaN` and `Infinity`, which are no JSON: other parsers refuse them.
    say(json.dumps(value, indent=2, allow_nan=False))


def on_stderr(
    *, on_searched: "Callable[[Study], None] | None" = None, is_verbose: bool = False
) -> "Progress":
    from tune_speed.api.progress import Progress

    return Progress(shown=True, on_searched=on_searched, is_verbose=is_verbose)


def show(found: "Shown", *, as_json: bool = False, piped_width: int = 100) -> None:
    if as_json:
        say(found.to_json())
    else:
        show_parts(found.parts(), piped_width=piped_width)


def show_parts(parts: Iterable["RenderableType"], *, piped_width: int = 100) -> None:
    """Prints texts, not folded as they hold commands, and tables, a blank line between two."""
    texts = [
        printable_lines(part) if isinstance(part, str) else drawn(part, piped_width)
        for part in parts
    ]
    # Not `say`: it would mark the colour codes of a drawn table, whose texts are printable already.
    print("\n\n".join(text.rstrip("\n") for text in texts))


def drawn(renderable: "RenderableType", piped_width: int, *, is_file: bool = False) -> str:
    """Returns what stdout shows, coloured on a terminal, else so wide; all of it printable."""
    from tune_speed.reporting.table import PlainConsole

    is_terminal = sys.stdout.isatty() and not is_file
    # None: rich takes the terminal's own width; a pipe has none.
    console = PlainConsole(width=None if is_terminal else piped_width)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def write_shown(path: Path, shown: "str | RenderableType") -> None:
    """Writes what would be shown to a file, and says so. Raises: StorageError, ConfigError."""
    from tune_speed.runtime.atomic_file import write_file

    # `is_file`: a terminal's width and colours have no place in a file, wherever stdout goes.
    text = shown if isinstance(shown, str) else drawn(shown, BOARD_WIDTH, is_file=True)
    write_file(path, (text.rstrip("\n") + "\n").encode())
    note(f"wrote {path}")


def check_export(path: Path | None, form: RecipeFormat | None) -> None:
    """Raises: ConfigError for a form without a file to write it to."""
    from tune_speed.core.errors import ConfigError

    if form is not None and path is None:
        raise ConfigError(f"--format {form} must go with --export FILE.")


def write_recipe(
    path: Path,
    record: "TrialRecord",
    *,
    run_id: str | None,
    form: RecipeFormat | None,
    search: "Totals | None" = None,
    known: "Recommended | None" = None,
) -> None:
    """Writes a trial's recipe, by default in the suffix's form. Raises: a TuneSpeedError.

    A recipe as YAML also says what is `known` of its configuration.
    """
    from tune_speed.reporting.trials.recipe_export import recipe_yaml
    from tune_speed.reporting.trials.text import plugin_options
    from tune_speed.runtime.atomic_file import write_file

    chosen = form or ("script" if path.suffix == ".py" else "yaml")
    quoted = shlex.quote(str(path))
    rerun = {
        "yaml": f"tune-speed train {quoted}{plugin_options()}",
        "timm": f"python train.py --config {quoted}",
    }.get(chosen, f"python {quoted}")
    if chosen == "yaml":
        text = recipe_yaml(record, run_id=run_id, search=search, rerun=rerun, known=known)
    else:
        # It needs torch.
        from tune_speed.experiments.exports.formats import exported

        text = exported(record, chosen, path=path, run_id=run_id, search=search, rerun=rerun)
    write_file(path, text.encode())
    note(f"wrote {path}; train it with: {rerun}")


def print_listing(
    rows: list[dict[str, Any]], form: Format | ListFormat, *, title: str, out: Path | None = None
) -> None:
    """Prints rows of the same fields, or writes them to a file. Raises: ConfigError for Parquet."""
    from tune_speed.core.errors import ConfigError
    from tune_speed.reporting.table import Table

    if form == "parquet":
        raise ConfigError("--format parquet must go with `list trials` and --out FILE.")
    if form == "table":
        table = Table.of_rows(rows, title=title)
        print_rows(rows, title=title) if out is None else write_shown(out, table)
        return
    forms: dict[str, Callable[[], str]] = {
        "json": lambda: json.dumps(rows, indent=2),
        "jsonl": lambda: "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in rows),
        "markdown": lambda: Table.of_rows(rows).markdown(verbatim=True),
        "csv": lambda: Table.of_rows(rows).csv(),
    }
    text = forms[form]()
    if out is not None:
        write_shown(out, text)
    else:
        say(text.removesuffix("\n"), end="\n" if text else "")


def print_rows(rows: list[dict[str, Any]], *, title: str) -> None:
    from tune_speed.reporting.table import Table

    if rows:
        print(drawn(Table.of_rows(rows, title=title), 160), end="")
    else:
        note(f"no {title} on record")

"""The commands on what is on record or can be named: `list`, `show` and `compare`."""

from collections.abc import Callable
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tune_speed.cli import common
from tune_speed.core.errors import ConfigError

if TYPE_CHECKING:
    from tune_speed.reporting.trials.comparison import Comparison

# Where `mlflow ui` shows its pages.
UI_ADDRESS = "http://127.0.0.1:5000"

Listing = Literal[
    "workloads", "models", "optimizers", "schedules", "datasets", "loaders", "augmentation",
    "speedups", "orders", "metrics", "techniques", "fields", "papers", "studies", "trials",
]  # fmt: skip


def list_(
    what: Annotated[Listing, typer.Argument(help="What to list.")],
    name: Annotated[
        str | None,
        typer.Argument(help="Explain this entry: its source and its fields. Of trials: the study."),
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="Of trials: the study.", autocompletion=common.studies)
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="FILTER",
            help="Of trials: only those that fit, such as 'status=missed and lr>0.1'; `list fields`"
            " has the fields.",
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="Of trials: the fastest N on each device.")
    ] = None,
    plugin: common.PluginOption = None,
    format_: Annotated[
        common.ListFormat, typer.Option("--format", help="Form of the output.")
    ] = "table",
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
    as_json: common.JsonOption = False,
) -> None:
    """List what a study file can name, or the studies or a study's trials on record.

    With a name, explain that entry: tune-speed list optimizers sgd

    Example: tune-speed list trials --study digits_quickstart --where 'status=missed and lr>0.1'
    """
    form = "json" if as_json else format_
    of_trials = {"--study": study, "--where": where, "--top": top}
    given = [name for name, value in of_trials.items() if value is not None]
    if given and what != "trials":
        raise ConfigError(f"{', '.join(given)} must go with `list trials`, but got `list {what}`.")
    if name is not None and what == "trials":
        if study is not None or "/" in name:
            raise ConfigError(
                "`list trials` takes a study: `tune-speed show STUDY/TRIAL` shows one."
            )
        study = name
    if what == "techniques" and name is None and form == "markdown":
        from tune_speed.reporting.listings.listings import techniques_table

        table = techniques_table()
        common.say(table) if out is None else common.write_shown(out, table)
        return
    if what == "trials":
        _print_trials(study, where, top, form, out)
        return
    rows = _study_rows() if what == "studies" else _listing(what)
    if name is None:
        common.print_listing(rows, form, title=what, out=out)
    elif out is not None:
        raise ConfigError(f"--out must go with a whole listing, but got the entry {name!r}.")
    else:
        _print_entry(what, name, rows, form)


def show(
    run_id: Annotated[
        str, typer.Argument(help="An MLflow run id, or STUDY/TRIAL.", autocompletion=common.trials)
    ],
    export: common.ExportOption = None,
    format_: common.RecipeFormatOption = None,
    plugin: common.PluginOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Show one trial: its recipe, curve, clocks, environment and how it ended.

    A certified result is STUDY/TRIAL@certified.

    Example: tune-speed show digits_quickstart/t0007
    """
    from tune_speed.reporting.trials.text import describe
    from tune_speed.tracking.notes import NO_NOTE, notes_of, trial_key
    from tune_speed.tracking.reader.queries import find_trial

    common.check_export(export, format_)
    store = common.store()
    tracked = find_trial(store, run_id)
    record = tracked.record
    key = trial_key(record.trial_id, record.kind)
    note = notes_of(store, tracked.experiment_id).get(key, NO_NOTE)
    url, command = store.page(tracked.experiment_id, tracked.run_id), store.ui_command
    if as_json:
        from tune_speed.core.words import IN_WORDS

        places = {"run_id": tracked.run_id, "url": url, "ui_command": command}
        said = {"note": note.text, "starred": note.starred}
        common.say_json({**places, **said, **record.model_dump(mode="json", context=IN_WORDS)})
    else:
        common.say(describe(record, run_id=tracked.run_id))
        if note != NO_NOTE:
            common.say(f"\nnote: {note}")
        page = f"/#/experiments/{tracked.experiment_id}/runs/{tracked.run_id}"
        common.say(f"\nin MLflow: {url or f'{command}  # then {UI_ADDRESS}{page}'}")
    if export is not None:
        common.write_recipe(export, record, run_id=tracked.run_id, form=format_)


def schema(plugin: common.PluginOption = None, as_json: common.JsonOption = False) -> None:
    """Print the JSON Schema of study files, for editors that complete and check YAML.

    Example: tune-speed schema > study.schema.json
    """
    from tune_speed.study.schema import json_schema

    common.say_json(json_schema())


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(help="MLflow run ids, or STUDY/TRIAL.", autocompletion=common.trials),
    ],
    all_: Annotated[
        bool, typer.Option("--all", help="Settings that are the same in all of them too.")
    ] = False,
    with_paper: Annotated[
        bool,
        typer.Option(
            "--with-paper", help="And what the source documents found with such settings."
        ),
    ] = False,
    format_: common.FormatOption = "table",
    as_json: common.JsonOption = False,
) -> None:
    """Show results side by side: what differs between their recipes, then their figures.

    They are ranked only if they share workload, protocol, device and kind.

    Example: tune-speed compare digits_quickstart/t0000 digits_quickstart/t0001
    """
    from tune_speed.reporting.trials.comparison import compare_records
    from tune_speed.tracking.reader.queries import find_trial

    store = common.store()
    # By run id: one result may be given twice, as its id and as STUDY/TRIAL.
    found = list({trial.run_id: trial for trial in (find_trial(store, n) for n in runs)}.values())
    if len(found) == 1 and not with_paper:
        raise ConfigError(
            f"compare must have two different results or more, but got {', '.join(runs)}. Name"
            " another one, or add --with-paper."
        )
    trials = [(trial.run_id, trial.record) for trial in found]
    comparison = compare_records(trials, with_equal=all_)
    paper = None
    if with_paper:
        from tune_speed.experiments.published.side_by_side import paper_table

        paper = paper_table([trial.record for trial in found])
    _print_comparison(comparison, paper, "json" if as_json else format_)
    if comparison.warning:
        common.note(f"warning: {comparison.warning}")


def _listing(what: Listing) -> list[dict[str, Any]]:
    if what == "fields":
        return _field_rows()
    if what == "papers":
        from tune_speed.experiments.published.published import paper_listing

        return paper_listing()
    from tune_speed.reporting.listings.listings import listing

    return listing(what)


def _print_entry(
    what: Listing, name: str, rows: list[dict[str, Any]], form: common.ListFormat
) -> None:
    from tune_speed.reporting.listings.listings import explained

    entry = explained(what, name, rows)
    if form == "json":
        common.say_json(entry)
        return
    fields = entry.pop("fields", [])
    if form != "table":
        common.print_listing(fields or [entry], form, title="fields")
        return
    common.say("\n".join(f"{key}: {value}" for key, value in entry.items() if value != ""))
    if fields:
        common.print_rows(fields, title="fields")


def _field_rows() -> list[dict[str, Any]]:
    from tune_speed.core.config import descriptions
    from tune_speed.reporting.listings.listings import first_paragraph
    from tune_speed.tracking.columns import COLUMNS
    from tune_speed.training.recipe import Recipe

    of_results = [
        {"name": name, "of": "result", "unit": column.unit, "about": column.about}
        for name, column in COLUMNS.items()
    ]
    of_recipes = [
        {"name": name, "of": "recipe", "unit": "", "about": first_paragraph(text)}
        for name, text in descriptions(Recipe).items()
    ]
    return [*of_results, *of_recipes]


def _study_rows() -> list[dict[str, Any]]:
    from tune_speed.core.records import Status
    from tune_speed.tracking.reader.studies import list_studies

    return [
        {
            "study": study.name,
            "workload": study.workload,
            "trials": sum(study.num_trials.values()),
            "reached": study.num_trials.get(Status.REACHED, 0),
            "best_time_s": study.best_time_s,
            "best_trial": study.best_trial,
            "device": study.device,
            "last_activity": study.last_activity,
            "is_running": study.is_running,
        }
        for study in list_studies(common.store())
    ]


def _print_trials(
    study: str | None, where: str | None, top: int | None, form: common.ListFormat, out: Path | None
) -> None:
    if study is None:
        raise ConfigError("`list trials` must have --study NAME. `list studies` says their names.")
    if form == "parquet" and out is None:
        raise ConfigError("--format parquet must go with --out FILE.")
    from tune_speed.core.comparability import board_key
    from tune_speed.reporting.trials import text
    from tune_speed.tracking.filter.where import where_of
    from tune_speed.tracking.notes import read_notes
    from tune_speed.tracking.reader.queries import Query, by_board, find_trials

    store = common.store()
    found = find_trials(store, Query(study=study, where=where_of(where)))
    boards = groupby(by_board(found), key=lambda trial: board_key(trial.record))
    # `--top` counts on each board, as trials of different devices have no common order.
    shown = [(t.run_id, t.record) for _, trials in boards for t in islice(trials, top)]
    if form == "table":
        notes = [f"{study}/{key}: {note}" for key, note in read_notes(store, study).items()]
        parts = [text.as_renderable(shown), *(["\n".join(notes)] if notes else [])]
        common.show_parts(parts) if out is None else common.write_shown(out, parts[0])
    elif form == "parquet" and out is not None:
        from tune_speed.api.results import trials_frame, write_parquet

        write_parquet(trials_frame(shown), out)
        common.note(f"wrote {out}")
    else:
        row_of = {"json": text.machine_row, "markdown": text.markdown_row}.get(form)
        rows = text.csv_rows(shown) if row_of is None else list(map(row_of, shown))
        common.print_listing(rows, form, title="trials", out=out)


def _print_comparison(
    found: "Comparison", paper: dict[str, list[Any]] | None, form: common.Format
) -> None:
    from tune_speed.reporting.trials import comparison

    if form == "json":
        published = {} if paper is None else {"paper": paper}
        common.say_json({**comparison.as_dict(found), **published})
        return
    show = {"csv": comparison.raw_of, "markdown": comparison.markdown_of}
    shown_as: Callable[[Any], Any] = show.get(form, comparison.text_of)
    if form == "table":
        common.show_parts([comparison.SideBySide(found)])
    else:
        common.print_listing(comparison.table_rows(found, shown_as), form, title="fields")
    if paper is None:
        return
    for title, name in {"ours and theirs": "figures", "settings": "settings"}.items():
        if paper[name]:
            print()
            shown = [{k: shown_as(v) for k, v in row.items()} for row in paper[name]]
            common.print_listing(shown, form, title=title)
    for line in paper["notes"]:
        common.note(line)

"""The commands on what is on record or can be named: `list` and `show`."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from tune_speed.cli_common import Format, JsonOption, print_listing


class Listing(StrEnum):
    """What `list` can list."""

    WORKLOADS = "workloads"
    MODELS = "models"
    OPTIMIZERS = "optimizers"
    SCHEDULES = "schedules"
    DATASETS = "datasets"
    LOADERS = "loaders"
    SPEEDUPS = "speedups"
    ORDERS = "orders"
    METRICS = "metrics"
    TECHNIQUES = "techniques"
    STUDIES = "studies"


def list_(
    what: Annotated[Listing, typer.Argument(help="What to list.")],
    format_: Annotated[Format, typer.Option("--format", help="Form of the output.")] = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """List what a study file can name, or the studies on record, with one line each.

    Example: tune-speed list models
    """
    form = Format.JSON if as_json else format_
    if what is Listing.TECHNIQUES and form is Format.MARKDOWN:
        from tune_speed.techniques import techniques_table

        print(techniques_table())
        return
    rows = _study_rows() if what is Listing.STUDIES else _listing(what)
    print_listing(rows, form, title=what.value)


def show(
    run_id: Annotated[str, typer.Argument(help="An MLflow run id, or STUDY/TRIAL.")],
    as_json: JsonOption = False,
) -> None:
    """Show one trial: its recipe, curve, clocks, environment and how it ended.

    Example: tune-speed show digits_quickstart/t0007
    """
    from tune_speed.export import describe
    from tune_speed.tracking.queries import find_trial
    from tune_speed.tracking.uri import tracking_uri

    tracked = find_trial(tracking_uri(), run_id)
    if as_json:
        fields = {"run_id": tracked.run_id, **tracked.record.model_dump(mode="json")}
        print(json.dumps(fields, indent=2))
        return
    print(describe(tracked.record, run_id=tracked.run_id))


def _listing(what: Listing) -> list[dict[str, Any]]:
    from tune_speed.export import listing

    return listing(what.value)


def _study_rows() -> list[dict[str, Any]]:
    from tune_speed.records import Status
    from tune_speed.tracking.queries import list_studies
    from tune_speed.tracking.uri import tracking_uri

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
        for study in list_studies(tracking_uri())
    ]

"""Texts on results: one trial in words, many as a table or a listing, a search's last lines."""

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tune_speed.components.metrics import METRICS
from tune_speed.components.plugins import registry
from tune_speed.core.comparability import board_key, fastest, nearest, target_of
from tune_speed.core.records import (
    Evaluation,
    Recommended,
    Status,
    TrialRecord,
    counts_of_ends,
    ended_as,
)
from tune_speed.core.stats import deviation, mean_interval
from tune_speed.core.text import counted, device_text, printable, significant
from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.reporting.page.words import clock_text, measured_names
from tune_speed.reporting.table import Table, named_lines
from tune_speed.reporting.trials.comparison import markdown_of
from tune_speed.study.yaml import dump_yaml
from tune_speed.tracking.columns import COLUMNS, values_of


def describe(record: TrialRecord, *, run_id: str | None) -> str:
    run = record.runs[-1]
    time = "–" if run.time_to_target_s is None else f"{run.time_to_target_s:.3f} s"
    clocks = ", ".join(f"{name} {value:.3f}" for name, value in run.clocks.model_dump().items())
    is_best = target_of(record.workload).seeks_best
    what = "training time" if is_best else "time to target"
    on_device = run.device_memory_gib
    beside = "" if on_device is None else f"; all processes {significant(on_device)} GiB"
    lines = [
        f"{record.study}/{record.trial_id}  (MLflow run {run_id})",
        f"  status           {ended_as(run)}: {run.stop_reason}",
        f"  {what:<16} {time}   ({record.verdict}, seed {run.seed})",
        *_runs(record),
        f"  clock            {clock_text(run)}",
        f"  workload         {record.workload_name} ({record.workload_hash}), on the"
        f" {record.evaluated_on} part",
        f"  device           {device_text(record.device)}, up to"
        f" {counted(record.max_cotenants, 'co-tenant')}",
        f"  clocks [s]       {clocks}",
        *normalisation_lines(record),
        f"  speed            {significant(run.images_per_s)} images/s,"
        f" {significant(run.flop_per_s)} FLOP/s, {significant(run.step_time_ms)} ms a step,"
        f" {counted(run.steps, 'step')}",
        f"  peak memory      {significant(run.peak_memory_gib)} of"
        f" {significant(run.memory_limit_gib)} GiB{beside}",
        *_costs(record),
        f"  searched         {describe_params(record.params)}",
        f"  proposed because {str(record.proposal_reason) or '–'}",
        f"  started          {record.started_at}",
        f"  finished         {record.finished_at}",
        f"  environment      {' '.join(f'{k}={v}' for k, v in record.environment.items())}",
        *[f"  plugin           {name} ({source})" for name, source in record.plugins.items()],
        "",
        *_metric_lines(record),
        "",
        *_curve(run.evaluations),
        "",
        dump_yaml({"recipe": record.recipe}).rstrip(),
    ]
    return "\n".join([*lines, *(["", run.traceback.rstrip()] if run.traceback else [])])


def normalisation_lines(record: TrialRecord) -> list[str]:
    """Returns a line on whose statistics normalised the images, if not the training part's."""
    found = record.runs[-1].normalisation
    return [] if found is None else [f"  normalised by    {found}"]


def _costs(record: TrialRecord) -> list[str]:
    run, cost = record.runs[-1], record.cost_of(record.time_to_target_s)
    idle = "" if run.idle_power_w is None else f", {run.idle_power_w:.0f} W of it idle"
    lines = []
    if run.power_w is not None:
        to_target = f"{significant(run.energy_j)} J to the target; {run.power_w:.0f} W in training"
        lines.append(f"  energy           {to_target}{idle}")
    if cost is not None:
        price = f"{significant(record.price_per_hour)} an hour"
        lines.append(f"  cost             {significant(cost)} to the target, at {price}")
    return lines


def _metric_lines(record: TrialRecord) -> list[str]:
    lines = []
    for name, metric in METRICS.items():
        of_run = metric.of_run
        values = [] if of_run is None else [of_run(run) for run in record.runs]
        known = [value for value in values if value is not None]
        if not known:
            continue
        is_share = metric.unit == "1"
        is_positive = not is_share and min(known) > 0
        found = mean_interval(known, is_positive=is_positive, is_share=is_share)
        unit = "" if is_share else f" {metric.unit}"
        text = significant(found.value)
        if found.ends is not None:
            interval = " to ".join(map(significant, found.ends))
            sd = significant(deviation(known))
            text += f" ± {sd} (sd, n = {len(known)}; 95 %: {interval})"
        lines.append(f"  {name:<24} {text}{unit}")
    return lines


def _runs(record: TrialRecord) -> list[str]:
    if len(record.runs) == 1:
        return []
    times = [run.time_to_target_s for run in record.runs]
    listed = ", ".join("∞" if time_s is None else f"{time_s:.3f}" for time_s in times)
    hits = sum(time_s is not None for time_s in times)
    return [f"  all runs         {hits} of {len(times)} met the target [s]: {listed}"]


def _curve(evaluations: Sequence[Evaluation]) -> list[str]:
    names = measured_names(evaluations)
    heads = [f"{printable(name):>10}" for name in ("step", "epoch", "train_s", *names)]
    lines = ["  ".join(heads)]
    for e in evaluations:
        figures = map(significant, (e.step, e.epoch, e.train_s, *map(e.value, names)))
        cells = zip(figures, heads, strict=True)
        lines.append("  ".join(figure.rjust(len(head)) for figure, head in cells))
    return lines


def counts(records: tuple[TrialRecord, ...]) -> Mapping[str, int]:
    all_counts = {s.value: sum(record.status == s for record in records) for s in Status}
    return {status: count for status, count in all_counts.items() if count}


def to_json(value: Any) -> str:
    """Returns `value` as indented JSON that refuses NaN."""
    return json.dumps(value, indent=2, allow_nan=False)


def next_steps(
    records: tuple[TrialRecord, ...],
    boards: tuple[Board, ...],
    *,
    study: str,
    folder: str,
    uri: str,
    recommended: Recommended | None = None,
    num_undelivered: int = 0,
    certify: str = "",
) -> str:
    """Returns a search's last lines: how all finished trials ended, and where to go from here.

    `folder` has ledger and study file, `uri` no password; `certify` is a command, empty: none.
    """
    ended = ", ".join(f"{count} {word}" for word, count in counts_of_ends(records).items())
    lines = [f"{counted(len(records), 'trial')}: {ended or 'none'}"]
    if not any(board.rows for board in boards) and (near := nearest(records)):
        lines.append(f"no trial met the target; nearest was {near.trial_id}: {near.stop_reason}")
    if recommended is not None:
        lines.append(f"recommended:  {recommended.text}")
        once = fastest(records)
        if once is not None and once.trial_id != recommended.trial_id:
            time_s = once.time_to_target_s
            lines.append(
                f"the fastest single run:  {once.trial_id}, {time_s:.3f} s, which is luck in part"
            )
    ends = dict.fromkeys(line for b in boards for said in b.range_ends.values() for line in said)
    lines += [f"at the end of its range:  {line}" for line in ends]
    in_mlflow = "every trial" if num_undelivered == 0 else f"all but {num_undelivered}"
    verb = "is" if num_undelivered == 0 else "are"
    lines.append(f"results:  {folder} (ledger and study file); {in_mlflow} {verb} in MLflow")
    if any(board.rows for board in boards) and not any(r.is_own_loop for r in records):
        lines.append(
            f"re-run the winner:  tune-speed best --study {study} --export best.yaml"
            f"{plugin_options()} && tune-speed train best.yaml{plugin_options()}"
        )
    if certify and any(board.rows for board in boards):
        lines.append(f"certify the fastest:  {certify}")
    lines.append(f"look at it:  tune-speed report {study} --html report.html")
    mlflow = uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {uri}"
    lines.append(f"in MLflow:  {mlflow}")
    return "\n".join(lines)


def plugin_options() -> str:
    return "".join(f" --plugin {shlex.quote(plugin.name)}" for plugin in registry.loaded())


Trial = tuple[str, TrialRecord]
"""A run id with its record."""

FIGURES = ("status", "time_to_target_s", "final_metric", "hits", "n", "steps")
SPEED = ("step_time_ms", "images_per_s", "peak_memory_gib")


def as_renderable(trials: Sequence[Trial]) -> RenderableType:
    if not trials:
        return Text("No finished trial of the study fits.")
    parts: list[RenderableType] = []
    for key, group in groupby(trials, key=lambda trial: board_key(trial[1])):
        board = list(group)
        kind = {"estimate": "estimates"}.get(key.kind, key.kind)
        heading = (
            f"{key.workload}, {kind}, on {device_text(key.device)}; protocol {key.protocol_version}"
        )
        figures = [name for name in FIGURES if name not in ("hits", "n") or kind == "certified"]
        shown = {name: COLUMNS[name] for name in ("trial_id", *figures, *SPEED)}
        columns = {
            column.heading or name: [column.text(column.value(record)) for _, record in board]
            for name, column in shown.items()
        } | {
            "status": [ended_as(record) for _, record in board],
            "run": [run_id[:8] for run_id, _ in board],
        }
        table = Table.of_columns(columns, left=("trial", "status", "run"))
        chosen = named_lines((r.trial_id, describe_params(r.params)) for _, r in board)
        parts += [Text(printable(heading), style="italic"), table, Text(), chosen, Text()]
    return Group(*parts)


def machine_row(trial: Trial) -> dict[str, Any]:
    run_id, record = trial
    return {"run_id": run_id, **values_of(record), "params": record.params}


def csv_rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Returns the same with a column for each parameter, `params.NAME`; absent: not searched."""
    names = dict.fromkeys(name for _, record in trials for name in record.params)
    rows = []
    for trial in trials:
        row = machine_row(trial)
        params = row.pop("params")
        rows.append(row | {f"params.{name}": params.get(name) for name in names})
    return rows


def markdown_row(trial: Trial) -> dict[str, Any]:
    run_id, record = trial
    names = ("trial_id", "kind", *FIGURES, *SPEED, "device")
    fields: Mapping[str, Any] = values_of(record)
    chosen = {"searched": describe_params(record.params), "run_id": run_id}
    cells = {**{name: fields[name] for name in names}, **chosen}
    return {name: markdown_of(value) for name, value in cells.items()}

"""Texts on results: one trial in words, a search's last lines."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tune_speed.components.metrics import METRICS
from tune_speed.components.metrics.repeats import mean_interval
from tune_speed.components.plugins import registry
from tune_speed.core.comparability import best_metric, goodness, target_of
from tune_speed.core.records import Evaluation, RunResult, Status, TrialRecord
from tune_speed.core.text import printable
from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.study.yaml import dump_yaml


def describe(record: TrialRecord, *, run_id: str | None) -> str:
    """Returns a trial in words: how it ended, its curve, its clocks, its recipe."""
    run = record.runs[-1]
    time = "–" if run.time_to_target_s is None else f"{run.time_to_target_s:.3f} s"
    clocks = ", ".join(f"{name} {value:.3f}" for name, value in run.clocks.model_dump().items())
    lines = [
        f"{record.study}/{record.trial_id}  (MLflow run {run_id})",
        f"  status           {run.status.value}: {run.stop_reason}",
        f"  time to target   {time}   ({record.kind}, seed {run.seed})",
        *_runs(record),
        f"  clock            {_clock(run)}",
        f"  workload         {record.workload_name} ({record.workload_hash}), on the"
        f" {record.evaluated_on} part",
        f"  device           {record.device}, up to {record.max_cotenants} co-tenants",
        f"  clocks [s]       {clocks}",
        f"  speed            {_figure(run.images_per_s)} images/s,"
        f" {_figure(run.step_time_ms)} ms a step, {run.steps} steps",
        f"  peak memory      {_figure(run.peak_memory_gib)} of {_figure(run.memory_limit_gib)} GiB",
        f"  searched         {describe_params(record.params)}",
        f"  proposed because {record.proposal_reason or '–'}",
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


def _metric_lines(record: TrialRecord) -> list[str]:
    """Returns a line on each metric that the runs have; of several, mean ± standard deviation."""
    lines = []
    for name, metric in METRICS.items():
        of_run = metric.of_run
        values = [] if of_run is None else [of_run(run) for run in record.runs]
        known = [value for value in values if value is not None]
        if known:
            unit = "" if metric.unit == "1" else f" {metric.unit}"
            lines.append(f"  {name:<24} {_mean(known)}{unit}")
    return lines


def _mean(values: list[float]) -> str:
    found = mean_interval(values)
    if found.sd is None:
        return _figure(found.mean)
    interval = f"{_figure(found.low)} to {_figure(found.high)}"
    return f"{_figure(found.mean)} ± {_figure(found.sd)} (sd, n = {found.n}; 95 %: {interval})"


def _runs(record: TrialRecord) -> list[str]:
    """Returns a line on all runs, where there are several; what follows is of the last."""
    if len(record.runs) == 1:
        return []
    times = [run.time_to_target_s for run in record.runs]
    told = ", ".join("∞" if time_s is None else f"{time_s:.3f}" for time_s in times)
    hits = sum(time_s is not None for time_s in times)
    return [f"  all runs         {hits} of {len(times)} met the target [s]: {told}"]


def _clock(run: RunResult) -> str:
    """Returns what the training clock is made of, and what passed."""
    words = [run.timing.value]
    if run.slowdown is not None and run.shared_train_s is not None:
        words.append(f"{run.shared_train_s:.3f} s passed, {run.slowdown:.2f} times as long")
    if run.cotenants:
        words.append(f"beside {', '.join(run.cotenants)}")
    return "; ".join([*words, *([run.note] if run.note else [])])


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _curve(evaluations: tuple[Evaluation, ...]) -> list[str]:
    """Returns a line an evaluation; metrics that none has are left out."""
    fields = ("accuracy", "macro_f1", "micro_f1", "loss", "train_loss")
    own = dict.fromkeys(name for evaluation in evaluations for name in evaluation.values)
    names = [n for n in dict.fromkeys((*fields, *own)) if _is_measured(n, evaluations)]
    header = "  ".join(f"{printable(name):>10}" for name in ("step", "epoch", "train_s", *names))
    return [header, *(_curve_line(evaluation, names) for evaluation in evaluations)]


def _is_measured(name: str, evaluations: Sequence[Evaluation]) -> bool:
    return any(evaluation.value(name) is not None for evaluation in evaluations)


def _curve_line(evaluation: Evaluation, names: Sequence[str]) -> str:
    figures = (evaluation.step, evaluation.epoch, evaluation.train_s, *map(evaluation.value, names))
    cells = [f"{_figure(figure):>10}" for figure in figures]
    widths = [max(10, len(printable(name))) for name in ("step", "epoch", "train_s", *names)]
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def counts(records: tuple[TrialRecord, ...]) -> Mapping[str, int]:
    """Returns how many records ended in each way; ways that did not occur are left out."""
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
    num_undelivered: int = 0,
    certify: str = "",
) -> str:
    """Returns a search's last lines: how trials ended, and where to go from here.

    Args:
        records: all finished trials.
        boards: the leaderboards.
        study: its name.
        folder: where ledger and study file are.
        uri: of the MLflow store, without its password.
        num_undelivered: trials that MLflow has not taken.
        certify: what certifies the fastest of a training function; empty: it is not said.
    """
    ended = ", ".join(f"{count} {status}" for status, count in counts(records).items())
    lines = [f"{len(records)} trials: {ended or 'none'}"]
    if records and not any(board.rows for board in boards):
        nearest = max(records, key=_best_goodness)
        lines.append(
            f"no trial met the target; nearest was {nearest.trial_id}: {nearest.stop_reason}"
        )
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


def _best_goodness(record: TrialRecord) -> float:
    return goodness(best_metric(record), target_of(record.workload))


def plugin_options() -> str:
    """Returns ` --plugin NAME` for each plugin that is loaded here: a further command needs it."""
    return "".join(f" --plugin {shlex.quote(plugin.name)}" for plugin in registry.loaded())


def search_json(
    records: tuple[TrialRecord, ...],
    boards: tuple[Board, ...],
    *,
    study: str,
    folder: str,
    uri: str,
) -> str:
    """Returns what a search found as JSON."""
    return to_json(
        {
            "study": study,
            "trials": dict(counts(records)),
            "boards": [board.model_dump(mode="json") for board in boards],
            "folder": folder,
            "tracking_uri": uri,
        }
    )

"""One trial as its page shows it: how it ended, its curve, its recipe, and what happened when."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tune_speed.core.comparability import target_of
from tune_speed.core.records import Evaluation, TrialRecord, ended_as
from tune_speed.core.text import counted, significant
from tune_speed.reporting.figures import draw_trial_svg
from tune_speed.reporting.page.site import render_part
from tune_speed.reporting.page.study_page import RecipeYaml
from tune_speed.reporting.page.trial_table import trial_facts
from tune_speed.reporting.page.words import measured_names, moment, seconds
from tune_speed.reporting.study.view import RunningTrial, ViewedTrial
from tune_speed.reporting.watch.status import StudyStatus

# Rows of the table of evaluations: of more, these are the last.
MOST_EVALUATIONS = 200

History = Callable[[str], list[tuple[float, float]]]
"""Returns training clock [s] and the metric of that name at each evaluation on record."""


def trial_html(
    seen: StudyStatus,
    run_id: str,
    *,
    with_curve: Callable[[], TrialRecord],
    history: History,
    recipe_yaml: RecipeYaml,
) -> str:
    """Returns the inside of a trial's page. Raises: ServiceError or StorageError."""
    view = seen.view
    ended = next((t for t in (*view.trials, *view.certified) if t.run_id == run_id), None)
    if ended is not None:
        facts = _of_ended(ended, with_curve(), history, recipe_yaml)
    else:
        running = next(trial for trial in view.running if trial.run_id == run_id)
        facts = _of_running(running, seen, history)
    return render_part("live_parts.html.j2", "trial", facts)


def _of_ended(
    trial: ViewedTrial, record: TrialRecord, history: History, recipe_yaml: RecipeYaml
) -> dict[str, Any]:
    target, run = target_of(record.workload), record.runs[-1]
    curves = [[(e.train_s, m) for e, m in run.measured(target.metric)] for run in record.runs]
    if len(curves) == 1 and len(curves[0]) < 2:
        # Its file is gone: the points that MLflow has are of the time before it was re-clocked.
        curves = [history(target.metric) or curves[0]]
    met = run.time_to_target_s is not None
    return {
        "name": record.trial_id,
        "status": record.status.value,
        "ended": ended_as(record),
        "figure": seconds(run.time_to_target_s) if met else seconds(run.clocks.train_s),
        "claim": f"to {target.words}" if met else f"of training, without {target.words}",
        "reason": str(record.stop_reason) or "no reason given",
        "note": trial.note,
        "curve": draw_trial_svg(curves, target, id_prefix="curve"),
        "facts": trial_facts(trial),
        "run_id": trial.run_id,
        "url": trial.url,
        "recipe": recipe_yaml(replace(trial, record=record)),
        "log": _log(record),
        "evaluations": _evaluations(run.evaluations),
        "traceback": run.traceback,
        "is_running": False,
    }


def _of_running(trial: RunningTrial, seen: StudyStatus, history: History) -> dict[str, Any]:
    target = seen.parts[0].target if seen.parts else None
    curve = [] if target is None else history(target.metric)
    chosen = ", ".join(f"{name} = {value}" for name, value in trial.params.items())
    facts = [("Searched", chosen), *((k, significant(v)) for k, v in trial.metrics.items())]
    return {
        "name": trial.trial_id,
        "status": "running",
        "ended": "running",
        "figure": seconds(trial.train_s),
        "claim": f"of training so far, towards {seen.target}",
        "reason": "It runs: this page follows it.",
        "note": None,
        "curve": None if target is None else draw_trial_svg([curve], target, id_prefix="curve"),
        "facts": [(name, text) for name, text in facts if text],
        "run_id": trial.run_id,
        "url": f"{seen.view.url}/runs/{trial.run_id}" if seen.view.url else None,
        "recipe": None,
        "log": [(moment(trial.started_at), "began")],
        "evaluations": None,
        "traceback": None,
        "is_running": True,
    }


def _log(record: TrialRecord) -> list[tuple[str, str]]:
    reason = str(record.proposal_reason) or "no reason given"
    lines = [(moment(record.started_at), f"began: {reason}")]
    for run in record.runs:
        wall = f"{seconds(run.clocks.wall_s)} in all, {seconds(run.clocks.train_s)} of training"
        waited = f"; waited {seconds(run.clocks.waiting_s)}" if run.clocks.waiting_s > 1 else ""
        did = f"{counted(run.steps, 'step')}, {counted(len(run.evaluations), 'evaluation')}"
        lines.append((f"seed {run.seed}", f"{did}, {wall}{waited}: {run.stop_reason}"))
        lines += [("note", str(note)) for note in run.note]
    return [*lines, (moment(record.finished_at), f"{ended_as(record)}: {record.stop_reason}")]


def _evaluations(evaluations: Sequence[Evaluation]) -> dict[str, Any] | None:
    names = measured_names(evaluations)
    shown = evaluations[-MOST_EVALUATIONS:]
    rows = [[*map(significant, (e.step, e.epoch, e.train_s, *map(e.value, names)))] for e in shown]
    head = ["step", "epoch", "train_s", *names]
    return {"head": head, "rows": rows, "of": len(evaluations)} if rows else None

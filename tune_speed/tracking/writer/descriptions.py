"""Descriptions of experiments and runs in Markdown, which MLflow's pages show.

What users wrote is escaped as HTML entities, which no Markdown renderer takes for markup. Secrets
are stripped, and a text too long for a tag loses rows of its tables, never its commands.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tune_speed.core.comparability import final_metric, target_of
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.stats import RunStatistics, TimeInterval
from tune_speed.core.text import INFINITE, counted, device_text, significant
from tune_speed.tracking import schema
from tune_speed.tracking.columns import METRICS
from tune_speed.tracking.store.uri import strip_secrets

NOTE = "mlflow.note.content"
"""The tag in which MLflow stores the description of an experiment or a run."""
# Characters of a table's cell or of a sentence that somebody else wrote.
MAX_CELL = 300
MAIN_METRICS = ("time_to_target_s", "reached", "gap", "final_accuracy", "accuracy", "train_s")
OURS = "*written by tune-speed*"
"""Ends a description of an experiment that may be replaced: nobody has changed it."""

# All but what no Markdown heeds; an underscore within a word is one of these.
_PLAIN = re.compile(r"[^\w .,;()%=+/'≥≤…×·–-]|(?<![^\W_])_|_(?![^\W_])")


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """What a search sets out to do."""

    study: str
    workload: Mapping[str, Any]
    workload_name: str
    searched: Mapping[str, str] = field(default_factory=dict)
    """What may vary, in words, by name: `{"epochs": "from 2 to 16 (log)"}`."""
    command: str = ""
    """What begins such a search; empty where none does."""


def plain(text: object, *, limit: int = MAX_CELL) -> str:
    """Returns `text` on one line, so that no part of it acts as Markdown or HTML."""
    line = " ".join(schema.clean(str(text), limit=limit).split())
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return _PLAIN.sub(lambda match: f"&#{ord(match[0])};", line)


def study_note(plan: SearchPlan) -> str:
    about = (
        f"**{plain(plan.study)}** searches for the recipe that reaches"
        f" **{_target(plan.workload)}** on **{plain(plan.workload_name)}** soonest, by the training"
        f" clock ({plain(plan.workload.get('mode', 'fixed_length'))}). A trial that misses has no"
        " time. Trials compare only within one workload, protocol and device."
    )
    rows = [(name, METRICS[name].unit, METRICS[name].about) for name in MAIN_METRICS]
    metrics = _table(("metric", "unit", "what it says"), rows)
    study = shlex.quote(plan.study)
    is_of_recipes = "function_hash" not in plan.workload
    export = [f"tune-speed best --study {study} --export best.yaml"] if is_of_recipes else []
    look = _commands(f"tune-speed leaderboard --study {study}", *export)
    searched = _table(("searched", "values"), plan.searched.items())
    return _joined([about, "", "Leaderboard:", look, "", *metrics], searched, [OURS])


def search_note(
    plan: SearchPlan, *, statuses: Mapping[Status, int], best: TrialRecord | None, link: str
) -> str:
    """`best` met the target first; `link` is its run's address, empty where that is not known."""
    counts = ", ".join(f"{n} {status.value}" for status, n in statuses.items() if n)
    finished = counted(sum(statuses.values()), "trial")
    lines = [f"**{finished} finished**{f': {counts}' if counts else ''}."]
    if best is None:
        lines.append("None has met the target so far.")
    else:
        name = f"[{plain(best.trial_id)}]({link})" if link else f"**{plain(best.trial_id)}**"
        lines.append(f"Best: {name}, {_outcome(best)} On {plain(device_text(best.device))}.")
        lines += ["", *_next_lines(best)]
    if plan.command:
        lines += ["The search again (with --resume, it goes on):", _commands(plan.command)]
    return _joined(lines, _table(("searched", "values"), plan.searched.items()), [])


def _next_lines(best: TrialRecord) -> list[str]:
    study = shlex.quote(best.study)
    if best.is_own_loop:
        loop = shlex.quote(f"FILE.py:{best.workload.get('function', 'FUNCTION')}")
        head = "Certify the fastest on fresh seeds, with the file of the training function:"
        return [head, _commands(f"tune-speed certify {study} --train {loop}")]
    commands = (f"tune-speed train {study}/{best.trial_id}", f"tune-speed certify {study}")
    return ["Train the best one, or certify the fastest on fresh seeds:", _commands(*commands)]


def trial_note(record: TrialRecord, *, run_id: str) -> str:
    head = [_certified(record)] if len(record.runs) > 1 else [_outcome(record)]
    reasons = {"Why it ended": record.stop_reason, "Why it was tried": record.proposal_reason}
    head += [f"{name}: {plain(text)}." for name, why in reasons.items() if (text := str(why))]
    run_id = plain(run_id)
    again = [] if record.is_own_loop else [f"tune-speed train {run_id}"]
    head += [_commands(f"tune-speed show {run_id}", *again)]
    paragraphs = [part for line in head for part in (line, "")]
    table = _table(("searched", "value"), record.params.items())
    return _joined(paragraphs, table, ["The whole recipe is in recipe.yaml, among the artifacts."])


def interrupted_note(reason: str) -> str:
    return f"**interrupted**: {plain(reason)}. Resuming the study runs the trial again."


def model_lines(uri: str, score: str, part: str, shape: Sequence[int]) -> str:
    """Returns how to use a logged model; `shape` is that of its images, (C, H, W)."""
    sizes = ", ".join(map(str, shape))
    return (
        f"**Model**: {plain(score)} on the {plain(part)} part. It takes pixels as uint8"
        f" (N, {sizes}), 0 to 255, not normalised, and gives logits (N, classes), on a CPU.\n\n"
        f'```python\nimport mlflow\n\nmodel = mlflow.pytorch.load_model("{uri}")\n```'
    )


def _outcome(record: TrialRecord) -> str:
    metric, final = target_of(record.workload).metric, final_metric(record)
    scores = "no evaluation" if final is None else f"final {plain(metric)} {final:.4f}"
    target = f"target: {_target(record.workload)}"
    if record.time_to_target_s is not None:
        return f"**reached** in **{_seconds(record.time_to_target_s)}**; {scores} ({target})."
    return f"**{record.status.value}**; {scores} ({target})."


def _certified(record: TrialRecord) -> str:
    found = RunStatistics.of(record)
    text = (
        f"**{plain(record.verdict)}**: **{found.hits} of {found.n}** runs met"
        f" {_target(record.workload)} on the {plain(record.evaluated_on)} part."
    )
    if found.median_s is not None:
        text += f" Median {_seconds(found.median_s)}, {_interval(found.median_interval)}."
    if found.hits:
        interval = _interval(found.expected_interval)
        text += f" Expected with restarts {_seconds(found.expected_s)}, {interval}."
    return text


def _interval(found: TimeInterval) -> str:
    if not found.confidence or not (found.low_s or found.high_s):
        return "no interval from so few runs"
    return f"{found.confidence:.0%} interval {_seconds(found.low_s)} to {_seconds(found.high_s)}"


def _seconds(time_s: float | None) -> str:
    return INFINITE if time_s is None else f"{significant(time_s)} s"


def _target(workload: Mapping[str, Any]) -> str:
    return plain(target_of(workload).words)


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [_row(map(plain, row)) for row in rows]
    return [_row(names), _row("---" for _ in names), *lines] if lines else []


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _commands(*commands: str) -> str:
    lines = [schema.clean(strip_secrets(c), limit=1000).replace("\n", " ") for c in commands]
    return "\n".join(["```", *(line.replace("```", "'''") for line in lines), "```"])


def _joined(head: Sequence[str], table: Sequence[str], tail: Sequence[str]) -> str:
    rest = ["", *tail] if tail else []
    room = schema.MAX_TAG - len("\n".join([*head, "", "", *rest])) - MAX_CELL
    shown: list[str] = []
    for line in table:
        room -= len(line) + 1
        if room < 0:
            break
        shown.append(line)
    left_out = len(table) - len(shown)
    more = ["", f"… and {left_out} more: see the parameters."] if left_out else []
    return schema.clean("\n".join([*head, "", *shown, *more, *rest]), limit=schema.MAX_TAG)

"""A glance at a study as text for a terminal; names are shown as they are, never as markup."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tune_speed.core.comparability import final_metric, result_text
from tune_speed.core.records import Status, TrialRecord, counts_of_ends, ended_as
from tune_speed.core.text import counted, device_text, duration
from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.reporting.study.view import OpenTrial, StudyPart, StudyView, ViewedTrial
from tune_speed.reporting.watch.status import State, StudyStatus
from tune_speed.tracking.schema import metric_key

BLOCKS = "▁▂▃▄▅▆▇█"
BAR_WIDTH, LABEL_WIDTH = 24, 9
# Times of the record's history that are written out.
MAX_RECORDS = 5
MAX_PARTS = 3
MAX_STEERED = 3
MAX_SPARKS = 16
# So many records are shown with their trials; more would not fit on the line.
MAX_NAMED = 3
MIN_ROWS = 2
# Until then it is not said when something was written last.
WRITTEN_LATELY_S = 10.0
HINT = "Ctrl-C ends watching; the search goes on."

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
STYLES: Mapping[str, str] = {Status.REACHED: "green", Status.FAILED: "red", Status.DIVERGED: "red"}
_STATE_STYLES = {
    State.RUNNING: "bold green",
    State.QUIET: "bold yellow",
    State.ENDED: "bold",
    State.NOT_BEGUN: "bold yellow",
}

_Cells = tuple[str, Text, str, str]
"""Trial id, how it is, its clock, and what is said of it."""


def plain(text: str) -> str:
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def screen(
    seen: StudyStatus, *, trouble: str | None = None, height: int = 60, hint: str = ""
) -> RenderableType:
    """Returns the picture, of about `height` lines at most; `trouble`: why it is not fresh."""
    parts = list(_part_rows(seen))
    spent = 9 + 3 * min(len(parts), MAX_PARTS) + (4 if trouble else 0)
    # The tables give way first: rich cuts off the end of what is higher than the terminal.
    rows = max(2 * MIN_ROWS, height - spent)
    running = seen.view.running[: max(MIN_ROWS, rows // 2)]
    ended = seen.last[: max(MIN_ROWS, rows - len(running))]
    body = Table.grid(padding=(0, 2, 0, 0))
    body.add_column(no_wrap=True, style="dim", width=LABEL_WIDTH)
    body.add_column(overflow="fold")
    for label, text in parts:
        body.add_row(label, text)
    blocks: list[RenderableType] = [*_head(seen), Text(), body]
    if running:
        blocks += [Text(), _table("running", _running_rows(running, seen.target))]
    if len(running) < len(seen.view.running):
        more = f"and {len(seen.view.running) - len(running)} more"
        blocks.append(Text(f"{'':{LABEL_WIDTH + 2}}{more}", style="dim"))
    if ended:
        blocks += [Text(), _table("ended", _ended_rows(ended))]
    return Group(*blocks, *_foot(seen, trouble, hint))


def standing(seen: StudyStatus) -> str:
    best = [part.leader.record for part in seen.parts[:1] if part.leader]
    return " · ".join(
        [
            _progress(seen),
            *_counts(seen),
            *(f"best {result_text(r)} ({plain(r.trial_id)})" for r in best),
            *_times(seen),
        ]
    )


def _progress(seen: StudyStatus) -> str:
    if seen.planned is None:
        return counted(seen.num_finished, "trial")
    return f"{seen.num_finished} of {counted(seen.planned, 'trial')}"


def _counts(seen: StudyStatus) -> list[str]:
    running, interrupted = len(seen.view.running), seen.view.interrupted
    ended = counts_of_ends(trial.record for trial in seen.view.trials)
    parts = [f"{count} {word}" for word, count in ended.items()]
    parts += [f"{running} running"] if running else []
    return parts + ([f"{interrupted} interrupted"] if interrupted else [])


def _times(seen: StudyStatus) -> list[str]:
    left = [f"about {duration(seen.left_s)} left"] if seen.left_s is not None else []
    left += [seen.goal] if seen.goal else []
    return [f"{duration(seen.elapsed_s)} searched", *left]


def state_text(seen: StudyStatus) -> str:
    if seen.state is State.NOT_BEGUN:
        return "no search of it has begun"
    if seen.state is State.QUIET:
        or_paused = ", or is paused" if seen.is_paused else ""
        return f"nobody has written for {duration(seen.quiet_s)}: the search may be gone{or_paused}"
    if seen.state is State.RUNNING:
        return "paused: no trial begins" if seen.is_paused else "running"
    if seen.num_finished >= (seen.planned or 0):
        return "ended"
    if seen.why_ended:
        return plain(f"ended: {seen.why_ended}")
    return "ended short of its plan; `tune-speed search … --resume` may go on"


def target_text(seen: StudyStatus) -> str:
    return plain(", ".join(text for text in (seen.workload, seen.target, seen.mode) if text))


def sparkline(values: Sequence[float]) -> str:
    """Returns a character a value, the higher the larger; `▁` throughout if they are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round(top * (v - low) / (high - low or 1.0))] for v in values)


def bar(done: int, of: int) -> str:
    filled = round(BAR_WIDTH * min(1.0, done / of))
    return f"{'█' * filled}{'░' * (BAR_WIDTH - filled)}"


def running_table(rows: Iterable[tuple[str, str, str, str]]) -> Table:
    return _table("running", ((name, Text(state), far, rest) for name, state, far, rest in rows))


def took_s(record: TrialRecord) -> float:
    """Returns the time to target [s], or the training clock of a miss."""
    time_s = record.time_to_target_s
    return record.runs[-1].clocks.train_s if time_s is None else time_s


def ended_line(record: TrialRecord, *, is_best: bool) -> str:
    why = f" · {reason}" if (reason := str(record.proposal_reason)) else ""
    best = "  ← best so far" if is_best else ""
    chosen = f"[{describe_params(record.params)}{why}]"
    return f"{_ended(record)}  {record.stop_reason}{best}  {chosen}"


def ended_brief(record: TrialRecord, *, is_best: bool) -> str:
    final = final_metric(record)
    metric = f"{'' if final is None else f'{final:.4f}':>7}"
    return f"{_ended(record)}  {metric}  {'best' * is_best:4}  {describe_params(record.params)}"


def _ended(record: TrialRecord) -> str:
    return f"{record.trial_id} {ended_as(record):10} {f'{took_s(record):.2f} s':>9}"


def _head(seen: StudyStatus) -> Iterator[RenderableType]:
    title = Text(plain(seen.view.study), style="bold", overflow="fold")
    title.append("  ").append(state_text(seen), style=_STATE_STYLES[seen.state])
    yield title
    if target := target_text(seen):
        yield Text(target, overflow="fold")
    counts, times = _counts(seen), _times(seen)
    if seen.state is State.RUNNING and seen.quiet_s > WRITTEN_LATELY_S:
        times.append(f"written {duration(seen.quiet_s)} ago")
    drawn = f"{bar(seen.num_finished, seen.planned)} " if seen.planned else ""
    lines = [f"{drawn}{_progress(seen)} · {' · '.join(times)}", " · ".join(counts)]
    yield Text("\n".join(filter(None, lines)), overflow="fold")


def _part_rows(seen: StudyStatus) -> Iterator[tuple[str, RenderableType]]:
    for part in seen.parts[:MAX_PARTS]:
        is_only, key = len(seen.parts) == 1, part.key
        what = "" if is_only else f", workload {key.workload_hash[:8]}: {part.target.words}"
        yield "device", Text(plain(f"{device_text(key.device)}{what}"))
        yield from _best_rows(part, seen.view)
    if len(seen.parts) > MAX_PARTS:
        yield "parts", Text(f"and {len(seen.parts) - MAX_PARTS} more")
    if not seen.parts:
        yield "best", Text("no trial has ended yet", style="dim")
    for i, (at, line) in enumerate(seen.steered[-MAX_STEERED:]):
        yield "" if i else "steered", Text(plain(steered_text(at, line)), style="dim")


def steered_text(at: str, line: str) -> str:
    return f"{at[11:19]} {line}"


def _best_rows(part: StudyPart, view: StudyView) -> Iterator[tuple[str, RenderableType]]:
    trials = part.records
    if not trials:
        yield "best", Text(f"no trial {part.target.did_meet} yet", style="dim")
    else:
        record = trials[-1].record
        result = result_text(record)
        best = Text(f"{result}  {plain(record.trial_id)}", style="bold")
        best.append(f"  {plain(describe_params(record.params))}", style="not bold")
        yield "best", best
    if len(trials) > 1:
        is_best = part.target.seeks_best
        unit, digits = ("", 4) if is_best else (" s", 2)
        values = [final_metric(t.record) if is_best else t.record.time_to_target_s for t in trials]
        known = [value or 0.0 for value in values]
        times = " → ".join(f"{value:.{digits}f}" for value in known[-MAX_RECORDS:])
        more = "… → " if len(known) > MAX_RECORDS else ""
        text = Text(sparkline(known[-MAX_SPARKS:]), style="green")
        text.append(f"  {more}{times}{unit}", style="default")
        if len(trials) <= MAX_NAMED:
            names = " → ".join(plain(trial.record.trial_id) for trial in trials)
            text.append(f"  ({names})", style="dim")
        yield "record", text
    if certified := len(part.confirmed):
        command = f"tune-speed leaderboard --study {shlex.quote(view.study)}"
        yield "certified", Text(plain(f"{counted(certified, 'trial')}; see {command}"))


def _running_rows(trials: Sequence[OpenTrial], target: str) -> Iterator[_Cells]:
    metric = target.partition(" ")[0] or "accuracy"
    for trial in trials:
        value = trial.metrics.get(metric_key(metric))
        known = "not evaluated yet" if value is None else f"{metric} {value:.4f}"
        clock = "" if trial.train_s is None else f"{trial.train_s:.2f} s"
        chosen = describe_params({k: _value(v) for k, v in trial.params.items()})
        yield trial.trial_id, Text(known), clock, chosen if trial.params else ""


def _ended_rows(trials: Sequence[ViewedTrial]) -> Iterator[_Cells]:
    for record in [trial.record for trial in trials]:
        status = Text(ended_as(record), style=STYLES.get(record.status, "default"))
        yield record.trial_id, status, f"{took_s(record):.2f} s", str(record.stop_reason)


def _table(label: str, rows: Iterable[_Cells]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True, width=LABEL_WIDTH)
    for justify in ("left", "left", "right"):
        table.add_column(no_wrap=True, justify=justify)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for position, (name, state, clock, rest) in enumerate(rows):
        shown = Text("" if position else label, style="dim"), Text(plain(name)), state, Text(clock)
        table.add_row(*shown, Text(plain(rest), style="dim"))
    return table


def _foot(seen: StudyStatus, trouble: str | None, hint: str) -> Iterator[RenderableType]:
    place = seen.view.url or seen.view.ui_command
    if trouble is not None:
        yield Text()
        yield Text(plain(trouble), style="red", overflow="fold")
    yield Text()
    if place is not None:
        yield Text(f"in MLflow:  {plain(place)}", style="dim", overflow="fold")
    if hint:
        yield Text(hint, style="dim")


def _value(text: str) -> float | str:
    # MLflow's parameters are texts; as a number it is shown with four digits.
    try:
        return text if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        return text

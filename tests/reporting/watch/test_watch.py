import io
import json
import math
import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from helpers import command
from helpers.making import make_record, make_run
from rich.console import Console

from tune_speed.core.comparability import final_metric, target_of
from tune_speed.core.errors import ServiceError
from tune_speed.core.forecast import FINEST, LAW
from tune_speed.core.records import Status
from tune_speed.core.words import StopReason
from tune_speed.reporting.server.live_study import facts_of
from tune_speed.reporting.study.view import OpenTrial, StudyView, ViewedTrial
from tune_speed.reporting.watch.loop import Json, Lines, watch
from tune_speed.reporting.watch.screen import screen, sparkline, standing
from tune_speed.reporting.watch.status import QUIET_S, State, as_dict, glance
from tune_speed.tracking import Store, Tracker, schema
from tune_speed.tracking.reader.changes import SearchRun

START = datetime(2026, 1, 1, tzinfo=UTC)
START_S = START.timestamp()
TAGS = {"kind": "search", "trials": "10", "target": "accuracy ≥ 0.9", "workload": "digits"}


def at(second: float) -> str:
    return (START + timedelta(seconds=second)).isoformat()


def ended(number: int, time_s: float | None = 1.0, **fields: Any) -> ViewedTrial:
    """A trial of ten seconds, one after the other."""
    status = fields.pop("status", Status.MISSED if time_s is None else Status.REACHED)
    record = make_record(f"t{number:04d}", status, time_s=time_s or 1.0, **fields)
    moments = {"started_at": at(10 * number), "finished_at": at(10 * number + 10)}
    return ViewedTrial(
        record=record.model_copy(update=moments), run_id=f"run{number}", url=None, has_curve=False
    )


def running(number: int, *, accuracy: float | None = None) -> OpenTrial:
    return OpenTrial(
        trial_id=f"t{number:04d}",
        run_id=f"run{number}",
        started_at=at(10 * number),
        params={"optimizer": "sgd", "optimizer.sgd.lr": "0.123456789"},
        metrics={} if accuracy is None else {"accuracy": accuracy, "train_s": 1.5},
    )


def study(
    trials: Sequence[ViewedTrial] = (), alive: Sequence[OpenTrial] = (), **fields: Any
) -> StudyView:
    tags, is_running = fields.pop("tags", TAGS), fields.pop("is_running", True)
    updated_at = fields.pop("updated_at", trials[-1].record.finished_at if trials else at(0))
    search = SearchRun(
        run_id="parent", started_at=at(0), updated_at=updated_at, is_running=is_running, tags=tags
    )
    named: dict[str, Any] = {
        "study": "study",
        "uri": "sqlite:////mlflow.db",
        "url": None,
        "ui_command": "mlflow ui",
        "read_at": at(0),
        "searches": (search,),
        "trials": tuple(trials),
        "certified": (),
        "running": tuple(alive),
        "interrupted": 0,
    }
    return StudyView(**{**named, **fields})


def drawn(view: StudyView, *, now_s: float = 0.0, width: int = 80, **fields: Any) -> str:
    out = io.StringIO()
    seen = glance(view, now_s=START_S + now_s)
    Console(file=out, width=width).print(screen(seen, **fields))
    return out.getvalue()


class Told:
    def __init__(self, *answers: StudyView | Exception) -> None:
        self.answers = list(answers)

    def read(self, *, with_boards: bool) -> StudyView:
        assert not with_boards
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def lines_of(*answers: StudyView | Exception) -> list[str]:
    out = io.StringIO()
    display = Lines(Console(file=out, width=80))
    watch(Told(*answers), display, interval_s=0, sleep=lambda _: None, now=lambda: START_S + 25)
    return out.getvalue().splitlines()


def test_planned_and_counted_trials_are_told() -> None:
    view = study([ended(0), ended(1, None), ended(2, None)], [running(3)], interrupted=1)
    seen = glance(view, now_s=START_S + 30)
    assert (seen.planned, seen.num_finished) == (10, 3)
    assert seen.counts == {Status.REACHED: 1, Status.MISSED: 2}
    for part in ("3 of 10 trials", "1 reached", "2 missed", "1 running", "1 interrupted"):
        assert part in standing(seen)


def test_of_a_study_begun_anew_all_planned_trials_count_and_without_a_plan_none() -> None:
    view = study()
    twice = replace(view, searches=(*view.searches, *view.searches))
    assert glance(twice, now_s=0).planned == 20
    assert glance(study(tags={"kind": "search"}), now_s=0).planned is None
    certification = replace(view.searches[0], tags={"kind": "certification"})
    assert glance(replace(view, searches=(*view.searches, certification))).planned == 10


def test_time_left_is_the_pace_so_far() -> None:
    seen = glance(study([ended(0), ended(1)], [running(2)]), now_s=START_S + 24)
    assert seen.elapsed_s == pytest.approx(24)
    assert seen.left_s == pytest.approx(8 * 24 / 2)
    assert glance(study([], [running(0)]), now_s=START_S).left_s is None
    assert glance(study([ended(0)], is_running=False)).left_s is None


def test_time_left_comes_with_the_chance_of_the_goal_until_that_is_met() -> None:
    run = make_run(Status.MISSED, accuracy=0.85)
    missed = [ended(i, None, runs=(run,)) for i in range(6)]
    seen = glance(study(missed), now_s=START_S + 60)
    # Four trials are left, as much as two thirds of what was spent.
    assert seen.chance == pytest.approx(LAW.at(6.0, 6).chance(to_do(missed[0]), 4 / 6))
    assert f"left · {seen.chance:.0%} to meet the target by then" in standing(seen)
    assert as_dict(seen)["chance"] == seen.chance
    assert facts_of(seen, seen.parts)["texts"]["left"] == f"40 s, {seen.goal}"
    met = glance(study([*missed, ended(6)]), now_s=START_S + 70)
    assert met.chance == 1.0 and "by then" not in standing(met)
    assert glance(study(missed[:5]), now_s=START_S + 60).chance is None
    assert glance(study(missed, is_running=False)).chance is None


def to_do(trial: ViewedTrial) -> float:
    """Returns log of a trial's error over its target's."""
    metric = final_metric(trial.record)
    assert metric is not None
    goal = target_of(trial.record.workload).value
    return math.log((1 - metric + FINEST) / (1 - goal + FINEST))


def test_time_left_is_the_budgets_where_that_ends_first() -> None:
    tags = {"kind": "search", "trials": "10", "ends_at": at(60)}
    for now_s, left_s in ((24, 36), (70, 0)):
        view = study([ended(0), ended(1)], [running(2)], tags=tags, updated_at=at(now_s))
        assert glance(view, now_s=START_S + now_s).left_s == pytest.approx(left_s)
    without = study([ended(0), ended(1)], [running(2)], tags=tags | {"ends_at": ""})
    assert glance(without, now_s=START_S + 24).left_s == pytest.approx(96)


def test_a_night_between_two_sessions_is_not_searched() -> None:
    night_s = 8 * 3600.0
    resumed = study([ended(0), ended(1)], [running(1)], updated_at=at(night_s))
    seen = glance(resumed, now_s=START_S + night_s + 5)
    assert seen.elapsed_s == pytest.approx(20 + 5)


def test_sparkline_spans_its_values() -> None:
    assert sparkline([4.0, 2.0, 1.0]) == "█▃▁"
    assert sparkline([2.0]) == "▁" and sparkline([]) == ""


ALIVE = study([ended(0)], [running(1, accuracy=0.5)])
"""Its latest sign: 1.5 s after 10 s."""
SETTLED = {**TAGS, "why_ended": "nothing better is likely"}
TIMES = (None, 5.0, 7.0, 3.0, 3.0, 1.0)
DEVICES = [ended(0, 3.0), ended(1, 2.0), ended(2, 0.5, device="H200")]
PICTURES: dict[str, tuple[StudyView, float]] = {
    "records": (study([ended(i, t) for i, t in enumerate(TIMES)]), 60),
    "two devices": (study(DEVICES), 30),
    "begun": (study([], [running(0)]), 5),
    "not begun": (replace(study(), searches=()), 0),
    "quiet": (ALIVE, 11.5 + QUIET_S + 60),
    "not quiet yet": (ALIVE, 11.5 + QUIET_S - 1),
    "ended early": (study([ended(0)], is_running=False), 0),
    "ended settled": (study([ended(0)], is_running=False, tags=SETTLED), 0),
    "ended": (study([ended(i) for i in range(10)], is_running=False), 0),
}


@pytest.mark.parametrize("name", PICTURES)
def test_picture_of_a_study(name: str, kept_text: Callable[[str, str], None]) -> None:
    view, now_s = PICTURES[name]
    kept_text("\n".join(line.rstrip() for line in drawn(view, now_s=now_s).splitlines()), "")
    facts = as_dict(glance(view, now_s=START_S + now_s))
    names = ("state", "quiet_s", "elapsed_s", "left_s", "planned", "finished", "why_ended")
    kept_text("\n".join(f"{name}: {facts[name]}" for name in names), "facts")


def test_lines_tell_each_change_once_and_what_the_store_answers(
    kept_text: Callable[[str], None],
) -> None:
    before = study([ended(0, 5.0)], [running(1)])
    after = study([ended(0, 5.0), ended(1, 2.0)], [running(2)])
    last = study([ended(0, 5.0), ended(1, 2.0), ended(2, None)], is_running=False)
    lost = ServiceError("the store at X does not answer: connection refused")
    kept_text("\n".join(lines_of(before, before, lost, lost, after, after, last)))


def test_what_was_seen_to_change_lately_is_not_gone_whatever_the_clocks_say() -> None:
    view = study([ended(0)], [running(1)])
    assert glance(view, now_s=START_S + 1e6, unchanged_s=3.0).state is State.RUNNING


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_picture_keeps_to_its_width_and_height(width: int) -> None:
    params = {f"part_{i}.name_{i}": 0.123456 for i in range(12)}
    trials = [ended(i, 9.0 - i / 10, params=params) for i in range(40)]
    view = study(trials, [running(40 + i, accuracy=0.5) for i in range(20)])
    text = drawn(view, width=width, height=24)
    assert max(map(len, text.splitlines())) <= width
    num_shown = text.count("accuracy 0.5000")
    assert f"and {20 - num_shown} more" in text
    assert len(text.splitlines()) <= 24 + 12  # Long parameters are written out.


def test_names_are_text_and_neither_markup_nor_orders_to_the_terminal() -> None:
    name = "[red]x[/red]\x1b[31m\x07\ny"
    run = make_run().model_copy(update={"stop_reason": StopReason.model_validate(name)})
    view = study([ended(0, runs=(run,), params={name: name}, device=name)], study=name)
    text = drawn(view, trouble=name)
    shown = "[red]x[/red]\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}y"
    assert text.count(shown) >= 3 and "\x1b" not in text and "\x07" not in text
    (first, *rest) = lines_of(replace(view, searches=()))
    assert first.startswith(shown) and not any("\x1b" in line for line in rest)


def test_a_store_that_does_not_answer_at_first_is_an_error() -> None:
    with pytest.raises(ServiceError, match="refused"):
        lines_of(ServiceError("connection refused"))


def test_json_has_an_object_a_line_and_says_when_it_is_not_fresh(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alive, over = study([ended(0)], [running(1)]), study([ended(0)], is_running=False)
    reader = Told(alive, ServiceError("connection refused"), over)
    watch(reader, Json(), interval_s=0, sleep=lambda _: None)
    first, stale, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["running"][0]["trial_id"] == "t0001" and first["trouble"] is None
    assert "connection refused" in stale.pop("trouble")
    assert stale["finished"] == first["finished"] and last["state"] == "ended"
    assert last["parts"][0]["best"]["trial_id"] == "t0000"


def test_facts_for_machines_are_json_without_nan() -> None:
    view = study([ended(0), ended(1, None)], [running(2, accuracy=0.5)])
    assert json.loads(json.dumps(as_dict(glance(view)), allow_nan=False))["planned"] == 10


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[Tracker, Path]]:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(Store(uri), study="study", study_tags={"trials": "3"}, linger_s=0.01)
    tracker.trial_finished(record=make_record())
    tracker.trial_started(trial_id="t0001", params={}, recipe={})
    yield tracker, tmp_path
    tracker.close(timeout_s=10)


def wait_until(met: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def num_runs(folder: Path) -> int:
    return len(command.mlflow_runs(folder))


def test_the_command_looks_once_and_refuses_an_unknown_study(
    store: tuple[Tracker, Path], call: Callable[..., command.Done]
) -> None:
    _, folder = store
    wait_until(lambda: num_runs(folder) == 2)
    found = call("watch", "study", "--once", "--json", folder=folder).json
    assert (found["finished"], found["planned"], found["study"]) == (1, 3, "study")
    unknown = call("watch", "studie", "--once", folder=folder)
    assert unknown.code == 2 and "did you mean `study`" in unknown.err and not unknown.out


@pytest.mark.slow
def test_ctrl_c_ends_watching_with_130_and_without_a_traceback(
    store: tuple[Tracker, Path],
) -> None:
    watcher = command.start("watch", "study", "--interval", "0.1", folder=store[1])
    assert watcher.stdout is not None
    assert watcher.stdout.readline().startswith("study")
    os.killpg(watcher.pid, signal.SIGINT)
    _, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 130
    assert err == "stopped watching; the search is not touched\n"


@pytest.mark.slow
def test_watching_ends_with_the_search(store: tuple[Tracker, Path]) -> None:
    tracker, folder = store
    watcher = command.start("watch", "study", "--interval", "0.1", folder=folder)
    assert watcher.stdout is not None
    watcher.stdout.readline()
    tracker.trial_finished(record=make_record("t0001", time_s=0.5))
    tracker.close(timeout_s=20)
    out, err = watcher.communicate(timeout=60)
    assert (watcher.returncode, err) == (0, "")
    last = out.splitlines()[-1]
    assert "best 0.50 s (t0001)" in last and "ended short of its plan" in last


class Terminal:
    """A command on a terminal of 80 columns and 24 lines; what it draws is kept."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        self.output = ""
        master, slave = pty.openpty()
        subprocess.run(["stty", "rows", "24", "cols", "80"], stdin=slave, check=True)
        environment = {**command.environment(folder), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [command.TUNE_SPEED, *arguments],
            cwd=folder,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, args=(master,))
        self._reader.start()

    def _read(self, master: int) -> None:
        try:
            while part := os.read(master, 65536):
                self.output += part.decode(errors="replace")
        except OSError:  # The other side has closed.
            pass
        finally:
            os.close(master)

    def wait(self) -> int:
        code = self.process.wait(timeout=240)
        self._reader.join(timeout=10)
        return code


WAITS = """
import time
from pathlib import Path

def waits(params, run):
    was_seen, step = False, 0
    while not was_seen:
        time.sleep(0.05)
        was_seen, step = Path({seen!r}).exists(), step + 1
        with run.timed():
            run.step()
        run.evaluated(step=step, metric=1.0 if was_seen else 0.5)
"""
WAITING = """
workload: {target: {value: 0.9}, mode: anytime, max_train_s: 60}
recipe: {rate: {low: 1.0, high: 2.0}}
search: {policy: random, trials: 2, concurrent: 1}
"""


@pytest.mark.slow
def test_a_real_search_is_watched_from_another_process_until_its_end(tmp_path: Path) -> None:
    """Its trials go on once both who watch have seen one that runs."""
    seen = tmp_path / "seen"
    (tmp_path / "waits.py").write_text(WAITS.format(seen=str(seen)))
    (tmp_path / "tiny.yaml").write_text(WAITING)
    search = command.start("search", "tiny.yaml", "--train", "waits.py:waits", folder=tmp_path)
    wait_until(lambda: (tmp_path / "mlflow.db").exists(), timeout_s=120)
    wait_until(lambda: num_runs(tmp_path) > 0, timeout_s=120)
    terminal = Terminal("watch", "tiny", "--interval", "0.3", folder=tmp_path)
    looks = command.start("watch", "tiny", "--json", "--interval", "0.3", folder=tmp_path)
    wait_until(lambda: "running" in terminal.output)
    assert looks.stdout is not None and looks.stderr is not None
    found = [json.loads(looks.stdout.readline())]
    while not found[-1]["running"]:
        found.append(json.loads(looks.stdout.readline()))
    assert found[-1]["running"][0]["params"]
    seen.touch()
    # Not `communicate`, which would leave out what `readline` has read ahead.
    with looks:
        out, err = looks.stdout.read(), looks.stderr.read()
    assert (looks.returncode, err) == (0, "") and terminal.wait() == 0
    search.communicate(timeout=60)
    found += [json.loads(line) for line in out.splitlines()]
    assert found[-1]["state"] == "ended" and found[-1]["finished"] == found[-1]["planned"] == 2
    assert [look["finished"] for look in found] == sorted(look["finished"] for look in found)
    times = [r["runs"][0]["time_to_target_s"] for r in command.finished(tmp_path)]
    best = found[-1]["parts"][0]["best"]
    assert (best and best["time_to_target_s"]) == min((t for t in times if t), default=None)
    assert "2 of 2 trials" in terminal.output


def test_a_trial_of_an_older_version_without_times_does_not_end_watching() -> None:
    record = make_record().model_copy(update={"started_at": "", "finished_at": ""})
    trial = ViewedTrial(record=record, run_id="run", url=None, has_curve=False)
    seen = glance(study([trial], [running(1)], updated_at=at(0)), now_s=START_S + 12)
    assert seen.elapsed_s == pytest.approx(2.0) and seen.num_finished == 1


def test_the_tags_that_watch_reads_are_those_that_a_search_writes() -> None:
    from tune_speed.study.file import load_study
    from tune_speed.tuning.services import tags_of

    tags = tags_of(load_study("digits_quickstart", overrides=[], check_data=False), "w")
    view = study(tags={**tags, "kind": schema.SEARCH})
    seen = glance(view)
    assert seen.planned == int(tags["trials"]) and seen.mode == "fixed_length"
    assert seen.workload == "digits" and seen.target.startswith("accuracy ≥ 0.")

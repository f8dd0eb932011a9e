"""One study, and one of its trials, as their pages show them while the study runs."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from tune_speed.core.comparability import result_text, target_of
from tune_speed.core.records import Evaluation, TrialRecord, ended_as
from tune_speed.core.text import ABSENT, counted, device_text, duration, significant
from tune_speed.reporting.figures import FIGURES, draw_svg, draw_trial_svg
from tune_speed.reporting.page.site import RecipeYaml, recipe_of, render_part, section_of
from tune_speed.reporting.page.trial_table import trial_anchors, trial_facts, trial_table
from tune_speed.reporting.page.words import measured_names, moment, seconds
from tune_speed.reporting.server.channel import Moment, Part
from tune_speed.reporting.server.helm import Helm, shown_of
from tune_speed.reporting.study.reader import StudyReader, boarded
from tune_speed.reporting.study.view import OpenTrial, StudyPart, StudyView, ViewedTrial
from tune_speed.reporting.watch.screen import state_text
from tune_speed.reporting.watch.status import State, StudyStatus, fingerprint, glance
from tune_speed.tracking.notes import NO_NOTE
from tune_speed.tracking.store.store import Store

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


def _of_running(trial: OpenTrial, seen: StudyStatus, history: History) -> dict[str, Any]:
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


# Trials of each part whose curves are drawn, as in `report`.
FINALISTS = 10
RUN_ID = "[0-9a-f]{32}"
FIRST = ("best_so_far", "front")
"""Figures below the answer."""
ACROSS = ("parallel", "slices")
"""Figures that may take the page's whole width."""
REST = tuple(name for name in FIGURES if name not in (*FIRST, *ACROSS))

_OF_PART = re.compile(r"part-(\d{1,4})-([a-z]+)(?:-([a-z_]+))?")
_OF_TRIAL = re.compile(f"trial-({RUN_ID})")


class LiveStudy:
    """Reads a study again and again; what it gives out belongs together."""

    def __init__(
        self, store: Store, study: str, *, recipe_yaml: RecipeYaml, helm: Helm | None = None
    ) -> None:
        """Finds the study. Raises: ConfigError if there is none, ServiceError, StorageError."""
        self.study, self._recipe_yaml, self._helm = study, recipe_yaml, helm
        self._reader = StudyReader(store, study)
        # Parts are made in threads, and a reader is for one at a time.
        self._lock = threading.Lock()
        self._last: Results | None = None

    def read(self) -> Moment:
        """Returns the study as it is now. Raises: ServiceError or StorageError."""
        with self._lock:
            view = self._reader.read(with_boards=False)
        stamp = _digest(_results_of(view))
        if self._last is None or self._last.stamp != stamp:
            self._last = Results(boarded(view), stamp, self._recipe_yaml, self._with_curves)
        return self._moment(view, self._last)

    def _moment(self, view: StudyView, results: "Results") -> Moment:
        seen = glance(view)
        is_live = seen.state in (State.RUNNING, State.QUIET)
        steering = shown_of(self._helm, seen)
        helm = _digest(steering) if steering else ""
        pulse = _digest(results.stamp, seen.state, fingerprint(view), helm)
        stamps = {"stamp": results.stamp, "pulse": pulse, "layout": results.layout, "helm": helm}
        facts = {**facts_of(seen, results.parts), **stamps, "trouble": ""}

        def part_of(name: str) -> Part | None:
            if name == "running":
                own = (view, trials_address(self.study), steering.get("why") == "")
                return Part(partial(render_part, "study_parts.html.j2", "running", *own), "pulse")
            if name == "actions" and steering:
                make = partial(render_part, "live_parts.html.j2", "actions", steering)
                return Part(make, "helm")
            if found := _OF_TRIAL.fullmatch(name):
                return self._trial(seen, found[1])
            return results.part_of(name, facts)

        return Moment(facts=facts, part_of=part_of, is_live=is_live)

    def _trial(self, seen: StudyStatus, run_id: str) -> Part | None:
        make = partial(
            trial_html,
            seen,
            run_id,
            with_curve=self._locked(lambda: self._reader.with_curve(run_id)),
            history=lambda metric: self._locked(lambda: self._reader.history(run_id, metric))(),
            recipe_yaml=self._recipe_yaml,
        )
        for running in seen.view.running:
            if running.run_id == run_id:
                return Part(make, "pulse", is_heavy=True, title=running.trial_id)
        for ended in (*seen.view.trials, *seen.view.certified):
            if ended.run_id == run_id:
                return Part(make, "stamp", is_heavy=True, title=ended.record.trial_id)
        return None

    def _with_curves(self, part: StudyPart) -> StudyPart:
        read = self._locked(lambda: self._reader.read(finalists=FINALISTS, with_boards=False))
        return next((each for each in read().parts if each.key == part.key), part)

    def _locked(self, read: Callable[[], Any]) -> Callable[[], Any]:
        def locked() -> Any:
            with self._lock:
                return read()

        return locked


class Results:
    """What a study has come to, and how the parts of its page are made from that."""

    def __init__(
        self,
        view: StudyView,
        stamp: str,
        recipe_yaml: RecipeYaml,
        with_curves: Callable[[StudyPart], StudyPart],
    ) -> None:
        self.view, self.stamp = view, stamp
        self.parts = view.parts
        """Made once: figures know importances again by the part's trials."""
        # What a page without parts says depends on whether there will be some.
        layout = [part.key for part in self.parts]
        self.layout = _digest(layout or view.is_running)
        self._recipe_yaml, self._with_curves = recipe_yaml, with_curves

    @cached_property
    def anchors(self) -> Mapping[str, str]:
        return trial_anchors(self.parts)

    @cached_property
    def sections(self) -> list[dict[str, Any]]:
        numbered = enumerate(self.parts, start=1)
        return [section_of(self.view, p, anchors=self.anchors, number=n) for n, p in numbered]

    def part_of(self, name: str, facts: Mapping[str, Any]) -> Part | None:
        if name == "layout":
            return Part(partial(self.layout_html, facts), "pulse")
        if name == "searches":
            return Part(lambda: render_part("study_parts.html.j2", "searches", self.view))
        found = _OF_PART.fullmatch(name)
        if found is None or not 1 <= int(found[1]) <= len(self.parts):
            return None
        index, kind = int(found[1]) - 1, found[2]
        if kind == "figure" and found[3] in FIGURES:
            return Part(partial(self._figure, index, found[3]), is_heavy=True)
        make = {
            "answer": self._answer,
            "about": lambda i: self._rendered("about", self.sections[i], self.view),
            "certified": lambda i: self._board(i, "certified", "Certified results"),
            "estimates": lambda i: self._board(i, "estimates", "Fastest estimates"),
            "recipe": lambda i: self._rendered(
                "recipe",
                {**self.sections[i], "recipe": recipe_of(self.sections[i], self._recipe_yaml)},
            ),
            "endings": lambda i: self._rendered("endings", self.sections[i], self.anchors),
            "trials": lambda i: self._rendered(
                "trials",
                {**self.sections[i], "table": trial_table(self.parts[i], anchors=self.anchors)},
                trials_address(self.view.study),
            ),
        }.get(kind)
        if make is None or found[3] is not None:
            return None
        return Part(partial(make, index), is_heavy=kind == "trials")

    def layout_html(self, facts: Mapping[str, Any]) -> str:
        shown = {
            "view": self.view,
            "stamp": self.stamp,
            "facts": facts,
            "sections": self.sections,
            "answers": [self._answer(index) for index in range(len(self.parts))],
            "first": FIRST,
            "figures": (*ACROSS, *REST),
            "titles": {name: kind.title for name, kind in FIGURES.items()},
        }
        return render_part("live_parts.html.j2", "layout", shown)

    def _answer(self, index: int) -> str:
        return self._rendered("answer", self.sections[index])

    def _board(self, index: int, kind: str, title: str) -> str:
        table = self.sections[index][kind]
        is_empty = not table or (kind == "estimates" and not table["board"].rows)
        return "" if is_empty else self._rendered("board", table, title)

    def _figure(self, index: int, name: str) -> str:
        part = self.parts[index]
        part = self._with_curves(part) if name == "curves" else part
        prefix = f"p{index + 1}-{name}"
        drawn = draw_svg(name, part, id_prefix=prefix, anchors=self.anchors)
        return render_part("parts.html.j2", "figure", drawn) if drawn else ""

    def _rendered(self, name: str, *facts: Any) -> str:
        return render_part("study_parts.html.j2", name, *facts)


def facts_of(seen: StudyStatus, parts: tuple[StudyPart, ...]) -> dict[str, Any]:
    leader = parts[0].leader if parts else None
    best_s = None if leader is None else leader.record.time_to_target_s
    best_trial = None if leader is None else leader.record.trial_id
    left_s = None if seen.left_s is None else round(seen.left_s)
    planned = "" if seen.planned is None else f" of {seen.planned:,}"
    # A study of several parts has no time that is the best of all.
    where = f" on {device_text(leader.record.device)}" if leader and len(parts) > 1 else ""
    is_best = leader is not None and parts[0].target.seeks_best
    running = len(seen.view.running)
    texts = {
        "state": seen.state.value,
        "standing": standing if (standing := state_text(seen)) != seen.state.value else "",
        "finished": f"{seen.num_finished:,}{planned}",
        "running": f"{running:,}",
        "best": result_text(leader.record) if leader and is_best else seconds(best_s),
        "best_trial": f"{best_trial}{where}" if best_trial else "none met the target yet",
        "elapsed": duration(seen.elapsed_s),
        "left": ", ".join(
            filter(None, (ABSENT if left_s is None else duration(left_s), seen.goal))
        ),
        "target": ", ".join(filter(None, (seen.workload, seen.target, seen.mode))),
    }
    return {
        "title": f"{seen.view.study}: {counted(seen.num_finished, 'trial')}, {seen.state.value}",
        "state": seen.state.value,
        "finished": seen.num_finished,
        "planned": seen.planned,
        "running": running,
        "best_s": best_s,
        "best_trial": best_trial,
        "elapsed_s": round(seen.elapsed_s),
        "left_s": left_s,
        "texts": texts,
    }


def study_address(study: str) -> str:
    return f"/studies/{quote(study, safe='')}"


def trials_address(study: str) -> str:
    """Returns what the path of a trial's page begins with; its run id ends it."""
    return f"{study_address(study)}/trials/"


def _results_of(view: StudyView) -> tuple[Any, ...]:
    """Returns what differs wherever a result, a note or a recommendation is another."""
    ended = (*view.trials, *view.certified)
    last = max((trial.record.finished_at for trial in ended), default="")
    notes = [(trial.run_id, trial.note) for trial in ended if trial.note != NO_NOTE]
    searches = [
        (s.run_id, s.is_running, {k: v for k, v in s.tags.items() if k != "updated_at"})
        for s in view.searches
    ]
    return len(view.trials), len(view.certified), view.interrupted, last, notes, searches


def _digest(*facts: Any) -> str:
    return sha256(repr(facts).encode()).hexdigest()[:16]

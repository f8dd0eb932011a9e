"""One study as its page shows it while it runs."""

import re
import threading
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from tune_speed.core.comparability import result_text
from tune_speed.core.text import ABSENT, counted, device_text, duration
from tune_speed.reporting.figures import FIGURES, draw_svg
from tune_speed.reporting.page.site import render_part
from tune_speed.reporting.page.study_page import RecipeYaml, recipe_of, section_of
from tune_speed.reporting.page.trial_table import trial_anchors, trial_table
from tune_speed.reporting.page.words import seconds
from tune_speed.reporting.server.channel import Moment, Part
from tune_speed.reporting.server.helm import Helm, shown_of
from tune_speed.reporting.server.live_trial import trial_html
from tune_speed.reporting.study.reader import StudyReader, boarded
from tune_speed.reporting.study.view import StudyPart, StudyView
from tune_speed.reporting.watch.screen import state_text
from tune_speed.reporting.watch.status import State, StudyStatus, fingerprint, glance
from tune_speed.tracking.notes import NO_NOTE

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
        self, uri: str, study: str, *, recipe_yaml: RecipeYaml, helm: Helm | None = None
    ) -> None:
        """Finds the study. Raises: ConfigError if there is none, ServiceError, StorageError."""
        self.study, self._recipe_yaml, self._helm = study, recipe_yaml, helm
        self._reader = StudyReader(uri, study)
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
            "recipe": self._recipe,
            "endings": lambda i: self._rendered("endings", self.sections[i], self.anchors),
            "trials": self._trials,
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

    def _recipe(self, index: int) -> str:
        section = self.sections[index]
        recipe = recipe_of(section, self._recipe_yaml)
        return self._rendered("recipe", {**section, "recipe": recipe})

    def _trials(self, index: int) -> str:
        table = trial_table(self.parts[index], anchors=self.anchors)
        section = {**self.sections[index], "table": table}
        return self._rendered("trials", section, trials_address(self.view.study))

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

"""The addresses of the live page: pages, streams of what changes, and parts that did."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Coroutine, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from starlette import responses
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from tune_speed.core.errors import ConfigError, ServiceError, StorageError
from tune_speed.core.folders import STUDY_NAME
from tune_speed.core.records import Status
from tune_speed.reporting.leaderboard.queries import find_boards
from tune_speed.reporting.page.site import RecipeYaml, board_table, in_order, render, render_part
from tune_speed.reporting.page.words import moment, seconds
from tune_speed.reporting.server.channel import Channel, Moment, Part, in_thread
from tune_speed.reporting.server.helm import Helm, fields_of
from tune_speed.reporting.server.live_study import RUN_ID, LiveStudy, study_address, trials_address
from tune_speed.tracking.reader.studies import StudySummary, list_studies
from tune_speed.tracking.store.store import Store

# Studies whose trials stay in memory.
MOST_STUDIES = 12
# With twice as many connections, half of the files that may be open are left for the store.
MOST_STREAMS = min(256, os.sysconf("SC_OPEN_MAX") // 4)
# Longest wait of a page for its study: then it is painted without, and the rest comes later.
PATIENCE_S = 0.4
# Of a browser, before it asks again for a stream that broke off.
RETRY_MS = 2000
BLANK = {
    "title": "",
    "state": "",
    "stamp": "",
    "pulse": "",
    "layout": "",
    "trouble": "",
    "texts": {},
}
"""What a page knows of a study that is still being read."""

Result = TypeVar("Result")


class LivePages:
    """Answers requests about one store. For one event loop."""

    def __init__(
        self,
        store: Store,
        *,
        recipe_yaml: RecipeYaml,
        ending: asyncio.Event,
        helm: Helm | None = None,
    ) -> None:
        """Streams end when `ending` is set; without `helm` pages have no buttons."""
        self._store, self._recipe_yaml, self._ending = store, recipe_yaml, ending
        self._helm = helm
        self._heavy = asyncio.Lock()
        self._all = Channel(partial(read_store, store), heavy=self._heavy)
        self._studies: dict[str, asyncio.Task[Channel]] = {}

    def app(self) -> Starlette:
        routes = [
            Route("/", partial(self._overview, "studies", "Studies")),
            Route("/boards", partial(self._overview, "boards", "Leaderboards")),
            Route("/events", self._events),
            Route("/parts/{name}", self._part),
            Route("/studies/{study}", self._study),
            Route("/studies/{study}/events", self._events),
            Route("/studies/{study}/parts/{name}", self._part),
            Route("/studies/{study}/trials/{run_id}", self._trial),
        ]
        if self._helm is not None:
            routes.append(Route("/studies/{study}/steer", self._steer, methods=["POST"]))
        known = (HTTPException, ConfigError, ServiceError, StorageError)
        return Starlette(routes=routes, exception_handlers=dict.fromkeys(known, _problem))

    async def _overview(self, name: str, title: str, request: Request) -> responses.Response:
        moment = await self._all.now()
        made = await _soon(self._all.part(name))
        return _page(
            "live_overview.html.j2", moment.facts, base="", name=name, title=title, made=made
        )

    async def _study(self, request: Request) -> responses.Response:
        channel, study = await self._channel(request), request.path_params["study"]
        moment = await _soon(channel.now())
        layout = await channel.part("layout") if moment else None
        return _page(
            "live_study.html.j2",
            moment.facts if moment else BLANK,
            base=study_address(study),
            study=study,
            made=layout,
        )

    async def _trial(self, request: Request) -> responses.Response:
        channel, study = await self._channel(request), request.path_params["study"]
        run_id = _matching(request.path_params["run_id"], RUN_ID)
        moment = await channel.now()
        name = f"trial-{run_id}"
        part = moment.part_of(name)
        if part is None:
            raise HTTPException(404, f"{study} has no trial whose run in MLflow is {run_id}.")
        return _page(
            "live_trial.html.j2",
            moment.facts,
            base=study_address(study),
            study=study,
            name=name,
            part=part,
            made=await _soon(channel.part(name)),
        )

    async def _part(self, request: Request) -> responses.Response:
        made = await (await self._channel(request)).part(request.path_params["name"])
        if made is None:
            raise HTTPException(404, "This page has no such part.")
        headers = {"stamp": made.stamp, "follows": made.follows, "again-s": f"{made.again_s:.1f}"}
        return responses.HTMLResponse(made.html, headers=headers)

    async def _steer(self, request: Request) -> responses.Response:
        assert self._helm is not None
        study = _matching(request.path_params["study"], STUDY_NAME)
        send = partial(self._helm.send, study, await fields_of(request))
        return responses.JSONResponse(dict(await in_thread(send)))

    async def _events(self, request: Request) -> responses.Response:
        channel = await self._channel(request)
        await channel.now()

        async def stream() -> AsyncIterator[str]:
            yield f"retry: {RETRY_MS}\n\n"
            async for now in channel.moments(self._ending):
                yield f"data: {json.dumps(now.facts)}\n\n" if now else ":\n\n"

        if self._all.viewers + sum(map(_viewers, self._studies.values())) >= MOST_STREAMS:
            raise HTTPException(503, f"{MOST_STREAMS} pages are open. Close some of them.")
        return responses.StreamingResponse(stream(), media_type="text/event-stream")

    async def _channel(self, request: Request) -> Channel:
        """Returns what is read of the store, or its study. Raises: ConfigError, HTTPException."""
        if "study" not in request.path_params:
            return self._all
        study = _matching(request.path_params["study"], STUDY_NAME)
        found = self._studies.pop(study, None)
        if found is None or (found.done() and found.exception() is not None):
            found = asyncio.ensure_future(self._opened(study))
        # Those that were asked for last are last.
        self._studies[study] = found
        done = [name for name, task in self._studies.items() if task.done() and not _viewers(task)]
        for name in done[: max(0, len(self._studies) - MOST_STUDIES)]:
            del self._studies[name]
        return await asyncio.shield(found)

    async def _opened(self, study: str) -> Channel:
        own: dict[str, Any] = {"recipe_yaml": self._recipe_yaml, "helm": self._helm}
        open_it = partial(LiveStudy, self._store, study, **own)
        return Channel((await in_thread(open_it)).read, heavy=self._heavy)


def _viewers(opened: asyncio.Task[Channel]) -> int:
    is_open = opened.done() and opened.exception() is None
    return opened.result().viewers if is_open else 0


async def _soon(work: Coroutine[Any, Any, Result]) -> Result | None:
    """Returns what is awaited, None where that takes longer than a page should; it goes on."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
    return task.result() if done else None


def _page(template: str, facts: Mapping[str, Any], **context: Any) -> responses.Response:
    context = {"facts": facts, "state": json.dumps(facts), **context}
    return responses.HTMLResponse(render(template, context, is_live=True))


def _matching(text: str, pattern: str) -> str:
    if not re.fullmatch(pattern, text):
        raise HTTPException(404, "There is no such page.")
    return text


async def _problem(request: Request, error: Exception) -> responses.Response:
    is_sent = request.method == "POST"
    if isinstance(error, HTTPException):
        code, text = error.status_code, error.detail
    else:
        wrong = 400 if is_sent else 404
        code, text = (wrong if isinstance(error, ConfigError) else 503), str(error)
    if is_sent:
        return responses.JSONResponse({"error": text}, code)
    if "/parts/" in request.url.path or request.url.path.endswith("/events"):
        return responses.PlainTextResponse(text, code)
    return responses.HTMLResponse(render("problem.html.j2", {"text": text, "code": code}), code)


# Rows of each board; its study's page has the rest.
ROWS = 20


def read_store(store: Store) -> Moment:
    """Returns what a store has now. Raises: ServiceError or StorageError."""
    studies = list_studies(store)
    stamp = sha256(repr(studies).encode()).hexdigest()[:16]
    running = sum(study.is_running for study in studies)
    facts: dict[str, Any] = {
        "state": "running" if running else "ended",
        "stamp": stamp,
        "layout": "overview",
        "trouble": "",
        "texts": {},
    }
    parts = {
        "studies": Part(
            lambda: render_part("live_parts.html.j2", "studies", list(map(_row, studies)))
        ),
        "boards": Part(partial(boards_html, store), is_heavy=True),
    }
    return Moment(facts=facts, part_of=parts.get, is_live=running > 0)


def boards_html(store: Store) -> str:
    """Returns the leaderboards. Raises: ServiceError or StorageError."""
    tables = []
    for board in in_order(find_boards(store, top=ROWS)):
        links = {
            row.run_id: f"{trials_address(row.study)}{row.run_id}"
            for row in board.rows
            if row.run_id and re.fullmatch(STUDY_NAME, row.study)
        }
        tables.append(board_table(board, links=links, has_studies=True))
    return f"<div class=stack>{render_part('parts.html.j2', 'boards', tables)}</div>"


def _row(study: StudySummary) -> dict[str, Any]:
    # A stranger's experiment may be called anything: one that no address can have has no page.
    is_ours = re.fullmatch(STUDY_NAME, study.name)
    return {
        "name": study.name,
        "address": study_address(study.name) if is_ours else None,
        "is_running": study.is_running,
        "workload": study.workload,
        "device": study.device,
        "trials": sum(study.num_trials.values()),
        "reached": study.num_trials.get(Status.REACHED, 0),
        "best": seconds(study.best_time_s),
        "best_trial": study.best_trial or "",
        "last": moment(study.last_activity),
    }

"""Steering from a study's page: what its buttons need, and the request that one sends."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tune_speed.reporting.watch.status import StudyStatus
from tune_speed.tracking.schema import PREFIX, unpack_favourites

MOST_BYTES = 16_384
"""Of a request; one with a hundred settings has four thousand."""


@dataclass(frozen=True, kw_only=True)
class Helm:
    """What steers running searches; made above, as pages know nothing of searches."""

    look: Callable[[str], Mapping[str, Any]]
    """Returns `why` a study cannot be steered here, empty where it can, and its `fields`: what is
    searched, each with `name`, `values` in words and `choices`, if it is one."""
    send: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
    """Returns a request's `words` and, some time later, the search's `answer`. Raises: ConfigError
    if it is refused, ServiceError or StorageError if nobody answers."""


def shown_of(helm: Helm | None, seen: StudyStatus) -> dict[str, Any]:
    """Returns what the buttons of a study show; empty: there are none."""
    if helm is None:
        return {}
    tags = seen.view.searches[-1].tags if seen.view.searches else {}
    _, favourites = unpack_favourites({f"{PREFIX}{name}": text for name, text in tags.items()})
    best = favourites[0].trial_id if favourites else ""
    records = (trial.record for trial in reversed(seen.view.trials))
    return {
        **helm.look(seen.view.study),
        "is_paused": seen.is_paused,
        "best": best,
        "params": next((dict(r.params) for r in records if r.trial_id == best), {}),
        "settings": (
            ("trials", "Trials", seen.planned or ""),
            ("concurrent", "At the same time", tags.get("concurrent", "")),
            ("time_budget", "Time budget", "such as 2h, or none"),
        ),
    }


async def fields_of(request: Request) -> dict[str, Any]:
    """Returns the JSON object that was sent. Raises: HTTPException if it is none, or long."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "A request must be JSON (content-type: application/json).")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"A request must have at most {MOST_BYTES:,} bytes.")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"A request must be JSON: {error}") from error
    if not isinstance(fields, dict):
        raise HTTPException(400, "A request must be a JSON object with an `action`.")
    return fields

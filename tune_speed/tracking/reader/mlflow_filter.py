"""MLflow's filter language, which knows AND alone and no escapes, and its paging."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Runs of one request: about a second, and 20 MB of memory.
PAGE = 1000

_UNSAFE = re.compile(r"['\"`\\\x00-\x1f\x7f]")
# Letters whose other case not every database knows.
_UNEVEN = re.compile(r"[^\x20-\x7e]")


def tag_equals(key: str, value: str) -> str:
    """Returns a condition that holds wherever the tag `key` equals `value`.

    Quotes, backslashes and control characters cannot be written: they become wildcards of LIKE, so
    it may hold for other values too. Check what comes back with `has_tags`.
    """
    assert "`" not in key, key
    if not _UNSAFE.search(value):
        return f"tags.`{key}` = '{value}'"
    return f"tags.`{key}` LIKE '{_UNSAFE.sub('_', value)}'"


def tag_contains(key: str, part: str) -> str:
    """Holds where the tag contains `part`, in whatever case, and maybe elsewhere (`tag_equals`)."""
    return f"tags.`{key}` ILIKE '%{_UNSAFE.sub('_', _UNEVEN.sub('%', part))}%'"


def has_tags(run: Any, tags: Mapping[str, str]) -> bool:
    """Whether an MLflow run (or experiment) has exactly these tags, among others."""
    own = run.data.tags if hasattr(run, "data") else run.tags
    return all(own.get(key) == value for key, value in tags.items())


def runs_with(
    client: "MlflowClient",
    experiment_ids: Sequence[str],
    tags: Mapping[str, str],
    *,
    order_by: Sequence[str] = (),
    also: str = "",
    page_size: int = PAGE,
) -> Iterator[Any]:
    """Yields the runs that have `tags`, and for which `also` (a filter) holds, page by page."""
    if experiment_ids:
        search = partial(client.search_runs, list(experiment_ids), order_by=list(order_by))
        yield from _all_pages(search, tags, also=also, page_size=page_size)


def experiments_with(client: "MlflowClient", tags: Mapping[str, str], **view: int) -> Iterator[Any]:
    """Yields the experiments that have `tags`, page by page; `view_type`: deleted ones, too."""
    return _all_pages(partial(client.search_experiments, **view), tags)


def _all_pages(
    search: Callable[..., Any], tags: Mapping[str, str], *, also: str = "", page_size: int = PAGE
) -> Iterator[Any]:
    wanted = [tag_equals(key, value) for key, value in tags.items()]
    conditions, token = " AND ".join(filter(None, (*wanted, also))), None
    while True:
        page = search(filter_string=conditions, max_results=page_size, page_token=token)
        yield from (each for each in page if has_tags(each, tags))
        token = page.token
        if not token:
            return

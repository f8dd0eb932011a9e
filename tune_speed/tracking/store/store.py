"""One store of results, opened once: below `cli` and `api`, nothing takes an address."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tune_speed.core.errors import ServiceError
from tune_speed.tracking import schema
from tune_speed.tracking.store.opening import errors_of, open_client, within
from tune_speed.tracking.store.uri import sqlite_path, store_kind, strip_secrets, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Longest wait for an answer; a database that is frozen would never give one.
READ_S = 60.0

# Runs of one request: about a second, and 20 MB of memory.
PAGE = 1000

_UNSAFE = re.compile(r"['\"`\\\x00-\x1f\x7f]")

Result = TypeVar("Result")


class Store:
    """A SQLite file, a database, or an MLflow server; its text is its address without secrets.

    MLflow, which takes seconds to import, is asked on first use alone. Methods turn its errors into
    ServiceError or StorageError that name the store and what to do.
    """

    def __init__(self, uri: str | None = None) -> None:
        """Takes an address; None: $MLFLOW_TRACKING_URI, else `mlflow.db` here. Raises: ConfigError.

        Nothing is opened yet.
        """
        self.uri = tracking_uri(uri)
        """Absolute, with its password: for programs alone."""
        self.kind = store_kind(self.uri)
        self.file = sqlite_path(self.uri) if self.kind == "sqlite" else None
        self._client: MlflowClient | None = None
        self._file_id: tuple[int, int] | None = None
        self._is_writable = False

    def __str__(self) -> str:
        return strip_secrets(self.uri)

    @property
    def client(self) -> "MlflowClient":
        """MLflow's client, whose errors are its own. Raises: ServiceError without the store."""
        return self._opened(create=False)

    def create(self) -> "MlflowClient":
        """Returns the client of a store that can be written, made where it is missing."""
        return self._opened(create=True)

    def _opened(self, *, create: bool) -> "MlflowClient":
        # SQLite would go on with a file that was replaced, and has no name any more.
        is_known = self._client is not None and self.file_id() == self._file_id
        if is_known and self._is_writable >= create:
            assert self._client is not None
            return self._client
        self._client = open_client(self.uri, create=create)
        self._file_id, self._is_writable = self.file_id(), create
        return self._client

    def file_id(self) -> tuple[int, int] | None:
        """Returns device and inode of its file as it is now; None if there is none."""
        with suppress(OSError):
            found = None if self.file is None else self.file.stat()
            return found and (found.st_dev, found.st_ino)
        return None

    def call(
        self, function: Callable[["MlflowClient"], Result], *, timeout_s: float = READ_S
    ) -> Result:
        """Returns what `function` makes of the client. Raises: ServiceError, StorageError."""
        client = self.client
        with errors_of(self.uri):
            return within(timeout_s, partial(function, client))

    def search_runs(self, *args: Any, **how: Any) -> Any:
        """Returns a page of runs, as MLflow's client does; see `runs_with`."""
        return self.call(lambda client: client.search_runs(*args, **how))

    def studies(self, **view: int) -> dict[str, Any]:
        """Returns the experiments of all studies by name; `view_type`: deleted ones, too."""

        def search(**page: Any) -> Any:
            return self.call(lambda client: client.search_experiments(**view, **page))

        found = _all_pages(search, {schema.KIND: schema.STUDY_KIND})
        return {str(each.name): each for each in found}

    def refuse_deleted(self, experiment: Any) -> None:
        """Raises a ServiceError if the experiment, None if there is none, was deleted."""
        if experiment is not None and experiment.lifecycle_stage != "active":
            raise ServiceError(
                f"the MLflow experiment {experiment.name!r} is deleted: it lies in the trash of"
                f" {self}. Bring it back with `mlflow experiments restore"
                f" --experiment-id {experiment.experiment_id}`, or give the study another name."
            )

    def open_experiment(self, study: str, *, tags: Mapping[str, str]) -> str:
        """Returns the experiment's id, found or created, with `tags` set. Raises: ServiceError."""
        client = self.client
        with errors_of(self.uri):
            found = client.get_experiment_by_name(study)
            if found is None:
                from mlflow.exceptions import MlflowException

                try:
                    client.create_experiment(study, self.artifact_root(study), tags=dict(tags))
                except MlflowException as error:
                    # Another driver was faster.
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":
                        raise
                found = client.get_experiment_by_name(study)
            self.refuse_deleted(found)
            for key, value in tags.items():
                if found.tags.get(key) != value:
                    client.set_experiment_tag(found.experiment_id, key, value)
            return str(found.experiment_id)

    def artifact_root(self, study: str) -> str | None:
        """Returns a study's folder as a file URI, safely named; None: the server chooses it."""
        if self.kind == "http":
            return None
        parent = Path.cwd() if self.file is None else self.file.parent
        slug = re.sub(r"[^A-Za-z0-9_-]+", "-", study).strip("-")[:60]
        digest = sha256(study.encode("utf-8", "replace")).hexdigest()[:8]
        return (parent / "mlartifacts" / f"{slug}-{digest}".lstrip("-")).as_uri()

    def page(self, experiment_id: str, run_id: str = "") -> str | None:
        """Returns a run's address, or a study's; None: no server shows it (see `ui_command`)."""
        if self.kind != "http":
            return None
        # Without a login: a browser prompts for it.
        server = re.sub(r"//[^/]*@", "//", self.uri)
        run = f"/runs/{run_id}" if run_id else ""
        return strip_secrets(f"{server}/#/experiments/{experiment_id}{run}")

    @property
    def ui_command(self) -> str | None:
        """The command that opens the store in MLflow's own pages; None where a server does."""
        if self.kind == "http":
            return None
        return f"mlflow ui --backend-store-uri {shlex.quote(str(self))}"


# MLflow's filter language knows AND alone and no escapes.


def tag_equals(key: str, value: str) -> str:
    """Returns a condition that holds wherever the tag `key` equals `value`.

    Quotes, backslashes and control characters cannot be written: they become wildcards of LIKE, so
    it may hold for other values too. Check what comes back with `has_tags`.
    """
    assert "`" not in key, key
    if not _UNSAFE.search(value):
        return f"tags.`{key}` = '{value}'"
    return f"tags.`{key}` LIKE '{_UNSAFE.sub('_', value)}'"


def has_tags(run: Any, tags: Mapping[str, str]) -> bool:
    """Whether an MLflow run (or experiment) has exactly these tags, among others."""
    own = run.data.tags if hasattr(run, "data") else run.tags
    return all(own.get(key) == value for key, value in tags.items())


def runs_with(
    client: "MlflowClient | Store",
    experiment_ids: Sequence[str],
    tags: Mapping[str, str],
    *,
    order_by: Sequence[str] = (),
    also: str = "",
    deleted: bool = False,
) -> Iterator[Any]:
    """Yields the runs that have `tags`, and for which `also` (a filter) holds, page by page.

    `deleted`: those in the trash, and none but these.
    """
    if experiment_ids:
        how: dict[str, Any] = {"order_by": list(order_by)}
        if deleted:
            from mlflow.entities import ViewType

            how["run_view_type"] = ViewType.DELETED_ONLY
        search = partial(client.search_runs, list(experiment_ids), **how)
        yield from _all_pages(search, tags, also=also)


def _all_pages(
    search: Callable[..., Any], tags: Mapping[str, str], *, also: str = ""
) -> Iterator[Any]:
    wanted = [tag_equals(key, value) for key, value in tags.items()]
    conditions, token = " AND ".join(filter(None, (*wanted, also))), None
    while True:
        page = search(filter_string=conditions, max_results=PAGE, page_token=token)
        yield from (each for each in page if has_tags(each, tags))
        token = page.token
        if not token:
            return

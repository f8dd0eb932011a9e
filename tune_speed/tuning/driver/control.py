"""The one channel by which a running search is steered: `control.jsonl` in the study's folder.

Commands append requests; the driver acts on each and writes its answer to the ledger as an event
`steered`, first of all. So a request that the ledger does not answer was not acted on, whoever was
killed when, and `--resume` acts on it; one that it answers is not acted on again.

`driver.lock` is held, shared, by the driver of a running search: it says whether there is one, and
taking it to look cannot keep a driver from starting, as taking the ledger's own lock would.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tune_speed.core.errors import ConfigError, ServiceError, StorageError, writing
from tune_speed.core.event_log import EventLog, LogAdvice, whole_size
from tune_speed.core.folders import studies_folder
from tune_speed.core.text import switch
from tune_speed.runtime.file_lock import acquire, file_lock
from tune_speed.study.schema import check_study_name
from tune_speed.study.space import SearchSpace
from tune_speed.study.yaml import read_yaml
from tune_speed.training.trial import utc_now
from tune_speed.tuning.driver import requests
from tune_speed.tuning.driver.requests import Answer, Request

FILE, LOCK, WRITERS = "control.jsonl", "driver.lock", ".control.lock"
POLL_S = 0.1
WAIT_S = 30.0
"""Longest wait for the driver's answer: one that begins is in Ray's calls for seconds."""
ADVICE = LogAdvice(damaged="move the file away, with what nobody has acted on")


def folder_of(study: str) -> Path:
    """Returns the folder of a study that has a ledger here. Raises: ConfigError."""
    check_study_name(study)
    folder = studies_folder() / study
    if not (folder / "ledger.jsonl").is_file():
        there = [path.parent.name for path in studies_folder().glob("*/ledger.jsonl")]
        known = f"there are {', '.join(sorted(there))}" if there else "there are none"
        raise ConfigError.of(
            "study",
            f"must have a ledger in {studies_folder()}, where {known}",
            given=study,
            hint="Steer it on the machine, and in the folder, that it is searched in; or set"
            " TUNE_SPEED_STUDIES.",
        )
    return folder


def is_driven(folder: Path) -> bool:
    with suppress(OSError), (folder / LOCK).open("rb+") as file:
        return not acquire(file.fileno(), wait_s=-1.0)
    return False


@contextmanager
def driving(folder: Path) -> Iterator[None]:
    """Says, as long as the block runs, that a search of the study does. Raises: StorageError."""
    with writing(folder / LOCK):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(folder / LOCK, flags, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        # The ledger is held until later, so that no other driver has it.
        with suppress(OSError):
            os.unlink(folder / LOCK)
        os.close(file)


def send(study: str, fields: Mapping[str, Any], *, wait_s: float = WAIT_S) -> Answer:
    """Writes a request; returns the answer. Raises: ConfigError, ServiceError, StorageError."""
    folder = folder_of(study)
    own = {"id": secrets.token_hex(4), "at": utc_now()}
    tree = read_yaml(folder / "study.yaml").tree
    request = requests.checked_request({**requests.checked_in(tree, fields), **own})
    if not is_driven(folder):
        raise ConfigError(
            f"study {study} must be searched to be steered, but no search of it runs. Go on with"
            " `tune-speed search … --resume`."
        )
    answers = _Answers(folder)
    lock = file_lock(folder / WRITERS, wait_s=wait_s)
    with lock, EventLog(folder / FILE, what="steering", advice=ADVICE, key="id") as log:
        # Of a writer that was killed: what follows the piece of its line would be lost with it.
        for _ in log.events():
            pass
        log.append(requests.line_of(request))
    answer = answers.wait(request, wait_s=wait_s, is_driven=lambda: is_driven(folder))
    if answer.refused:
        raise ConfigError(f"{request.words}: {answer.text}")
    return answer


def outlook(study: str) -> dict[str, Any]:
    """Returns `why` a study cannot be steered from here, empty where it can, and its `fields`."""
    try:
        folder = folder_of(study)
    except ConfigError:
        why = "its folder is not here; it is steered where it is searched"
        return {"why": why, "fields": []}
    if not is_driven(folder):
        return {"why": "no search of it runs", "fields": []}
    try:
        space = SearchSpace.from_tree(read_yaml(folder / "study.yaml").tree["recipe"])
    except ConfigError as error:
        return {"why": str(error), "fields": []}
    fields = [{"name": p.name, "values": p.text(), "choices": p.choices} for p in space.parameters]
    return {"why": "", "fields": fields}


def history(study: str) -> list[dict[str, Any]]:
    """Returns requests with their answers, and those without. Raises: ConfigError, StorageError."""
    folder = folder_of(study)
    answers = _Answers(folder, from_start=True).new()
    done = {answer.request.id for answer in answers}
    waiting = [each for each in Inbox(folder).new() if each.id not in done]
    return [*(each.as_dict() for each in answers), *(requests.as_dict(each) for each in waiting)]


class _Lines:
    """The whole lines that are new in a file that grows."""

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self._path, self._offset = path, offset

    def new(self) -> list[bytes]:
        try:
            if self._path.stat().st_size <= self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = whole_size(data)
        self._offset += whole
        return data[:whole].splitlines()


class Inbox:
    """The requests, as the driver reads them."""

    def __init__(self, folder: Path) -> None:
        self._lines = _Lines(folder / FILE)

    def new(self) -> list[Request]:
        """Returns the requests since the last call; what is none is left out."""
        found = []
        for line in self._lines.new():
            # A stranger may have written it, or a later version: it must not end the search.
            try:
                found.append(requests.read_request(json.loads(line)))
            except (ValueError, TypeError, RecursionError, ValidationError):
                continue
        return found


class _Answers:
    """The answers in a ledger that another process writes."""

    def __init__(self, folder: Path, *, from_start: bool = False) -> None:
        path = folder / "ledger.jsonl"
        self._lines = _Lines(path, offset=0 if from_start else path.stat().st_size)
        self._path = path

    def new(self) -> list[Answer]:
        found = []
        for line in self._lines.new():
            # Records are long, and not read for this.
            if not line.startswith(b'{"event": "steered"'):
                continue
            try:
                event = json.loads(line)
                del event["event"]
                found.append(Answer.model_validate(event))
            except ValueError as error:
                raise StorageError(f"{self._path}: an answer must be readable: {error}") from error
        return found

    def wait(self, request: Request, *, wait_s: float, is_driven: Callable[[], bool]) -> Answer:
        deadline = time.monotonic() + wait_s
        while True:
            was_driven = is_driven()
            for answer in self.new():
                if answer.request.id == request.id:
                    return answer
            if not was_driven:
                why = "the search ended before it acted on it"
            elif time.monotonic() > deadline:
                why = f"the search has not acted on it for {wait_s:g} s, and still may"
            else:
                time.sleep(POLL_S)
                continue
            raise ServiceError(
                f"request {request.id} ({request.words}) is written, but {why}."
                f" `{switch('resume')}` acts on what was not acted on."
            )

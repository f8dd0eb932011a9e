"""Where checkpoints lie: a file, or a place that fsspec reaches (`s3://…`, `ftp://…`, …).

A checkpoint is there whole or not at all: it is written next to its place and moved there. Each
call ends within `WAIT_S`; a store that does not answer blocks its thread, and takes nothing new
until it has answered. All that goes wrong is a `StorageError`, without passwords, and costs no
trial.

A checkpoint's file has three parts, of which only the last needs torch:

```
tune_speed checkpoint 1 <SHA-256 of all that follows, in hex>
<the header: JSON in one line>
<the payload: what torch.save wrote, read with weights_only=True alone>
```
"""

import glob
import hashlib
import logging
import re
import shutil
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.core.records import RecordedRecipe
from tune_speed.core.redact import redact
from tune_speed.core.text import counted
from tune_speed.runtime.atomic_file import write_atomically

FORMAT = 1
LONGEST_HEADER_BYTES = 1 << 20

_FIRST_LINE = re.compile(rb"tune_speed checkpoint (\d{1,9}) ([0-9a-f]{64})\n")
_MOST_FIRST_LINE_BYTES = 128
_BLOCK_BYTES = 1 << 20


class BadCheckpoint(Exception):
    """A checkpoint that cannot be resumed; the message is the reason, as a clause."""


class Header(Config):
    """What is known of a checkpoint without its payload."""

    identity: dict[str, str]
    """What must be the same in the run that resumes it, by name."""
    step: Annotated[int, Field(ge=1)]
    """Optimizer steps done."""
    num_steps: Annotated[int, Field(ge=1)]
    """Of the whole run."""
    recipe: RecordedRecipe
    """As it ran: what was `auto` is a number, and the micro-batch fits into memory."""
    first_batch_size: Annotated[int, Field(ge=1)]
    """Micro-batch that the trial began with; memory ran out with it if `recipe` has less."""
    started_at: str
    """When the trial began: UTC, ISO 8601."""
    num_bytes: Annotated[int, Field(ge=0)]
    """Of the payload."""


def head(header: Header, payload: IO[bytes]) -> bytes:
    """Returns what the file begins with, up to the payload; reads that from its beginning."""
    # The digest comes first, so that a file that was cut off or changed is never read further.
    line = header.model_dump_json().encode() + b"\n"
    assert len(line) <= LONGEST_HEADER_BYTES, len(line)
    digest = hashlib.sha256(line)
    payload.seek(0)
    while block := payload.read(_BLOCK_BYTES):
        digest.update(block)
    return b"tune_speed checkpoint %d %s\n" % (FORMAT, digest.hexdigest().encode()) + line


def write(file: IO[bytes], beginning: bytes, payload: IO[bytes]) -> None:
    file.write(beginning)
    payload.seek(0)
    shutil.copyfileobj(payload, file, _BLOCK_BYTES)


def split(content: bytes) -> tuple[Header, memoryview]:
    """Returns header and payload of a file. Raises: BadCheckpoint."""
    first = _FIRST_LINE.match(content[:_MOST_FIRST_LINE_BYTES])
    if first is None:
        raise BadCheckpoint("it is no checkpoint, or its beginning is damaged")
    if int(first[1]) != FORMAT:
        raise BadCheckpoint(f"it is of format {int(first[1])}, and this version has {FORMAT}")
    rest = memoryview(content)[first.end() :]
    header, end = _header(content, first.end())
    if len(content) - end < header.num_bytes:
        raise BadCheckpoint("it is cut off")
    if hashlib.sha256(rest).hexdigest() != first[2].decode():
        raise BadCheckpoint("it is damaged: its digest is another")
    return header, memoryview(content)[end:]


def _header(content: bytes, begin: int) -> tuple[Header, int]:
    end = content.find(b"\n", begin, begin + LONGEST_HEADER_BYTES)
    if end < 0:
        raise BadCheckpoint("it is cut off in its header")
    try:
        return Header.model_validate_json(content[begin:end]), end + 1
    except ValidationError as error:
        raise BadCheckpoint(
            f"its header is damaged, in {counted(error.error_count(), 'field')}"
        ) from error


def peek(beginning: bytes) -> Header:
    """Returns the header of a file's beginning, unchecked: to inform. Raises: BadCheckpoint."""
    first = _FIRST_LINE.match(beginning[:_MOST_FIRST_LINE_BYTES])
    if first is None or int(first[1]) != FORMAT:
        raise BadCheckpoint("it is no checkpoint of this version")
    return _header(beginning, first.end())[0]


WAIT_S = 60.0

_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class CheckpointStore:
    """The place of one trial's checkpoint. For one thread."""

    def __init__(self, place: str, *, wait_s: float = WAIT_S) -> None:
        """Does not look at `place`, a path or a URL that fsspec knows, yet."""
        self.place, self._wait_s = place, wait_s
        self._last: threading.Thread | None = None

    def write(self, beginning: bytes, payload: IO[bytes], *, wait_s: float | None = None) -> None:
        """Puts a checkpoint there within `wait_s` [s], None: as for all calls; closes `payload`.

        Raises: StorageError; an earlier checkpoint is then still there, but for a store that can
            only move to where nothing is.
        """

        def put() -> None:
            with payload:
                if (path := local_path(self.place)) is not None:
                    # The folder alone: where a study's folder is not visible, on another node, none
                    # is made up.
                    path.parent.mkdir(exist_ok=True)
                    with write_atomically(path, durable=True) as file:
                        write(file, beginning, payload)
                else:
                    _put_remote(self.place, beginning, payload)

        if self._is_busy:
            payload.close()
        self._within("be saved", put, wait_s=wait_s)

    def read(self) -> bytes | None:
        """Returns the whole file; None if there is none. Raises: StorageError."""
        return self._within("be read", lambda: _get(self.place, most_bytes=None))

    def header(self) -> Header | None:
        """Returns how far a checkpoint there is; None: none can be used. Raises: StorageError."""
        beginning = self._within("be read", lambda: _get(self.place, LONGEST_HEADER_BYTES + 128))
        try:
            return None if beginning is None else peek(beginning)
        except BadCheckpoint:
            return None

    def remove(self) -> None:
        """Removes the checkpoint if it is there. Raises: StorageError."""
        self._within("be removed", lambda: _remove(self.place))

    @property
    def _is_busy(self) -> bool:
        return self._last is not None and self._last.is_alive()

    def _within(
        self, what: str, call: Callable[[], Result], *, wait_s: float | None = None
    ) -> Result:
        # A thread that hangs in a store cannot be ended: it stays, and nothing new is begun.
        wait_s = self._wait_s if wait_s is None else wait_s
        if self._is_busy:
            raise self._error(what, "the store has not answered an earlier call yet")
        answer = Future[Result]()

        def run() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        self._last = threading.Thread(target=run, name="tune_speed-checkpoint", daemon=True)
        self._last.start()
        try:
            return answer.result(wait_s)
        except TimeoutError as error:
            # A done call's time-out is the store's own, not ours.
            if answer.done():
                raise self._error(what, _words(error)) from error
            raise self._error(what, f"no answer within {wait_s:g} s") from None
        # Stores raise errors of their own libraries, which nobody can list.
        except Exception as error:
            raise self._error(what, _words(error)) from error

    def _error(self, what: str, why: str) -> StorageError:
        lines = why.splitlines() or [why]
        return StorageError(redact(f"the checkpoint {self.place} cannot {what}: {lines[0]}"))


def _words(error: Exception) -> str:
    # The system's own words leave out names of temporary files.
    reason = getattr(error, "strerror", None) or error
    return f"{type(error).__name__}: {reason}"


def discard(place: str) -> None:
    """Removes a trial's checkpoint, as it has its outcome; what is in the way is only logged."""
    try:
        CheckpointStore(place).remove()
    except StorageError as error:
        _log.warning("%s", error)


def saved_step(place: str, *, wait_s: float = WAIT_S) -> int | None:
    """Returns the step that a trial would resume from, unless it refuses; None: from the first."""
    try:
        header = CheckpointStore(place, wait_s=wait_s).header()
    except StorageError as error:
        _log.warning("%s", error)
        return None
    return None if header is None else header.step


def check_place(place: str, *, path: str) -> None:
    """Raises: ConfigError with `path` if this machine lacks the place's library; asks no store."""
    if local_path(place) is not None:
        return
    import fsspec

    try:
        fsspec.get_filesystem_class(urllib.parse.urlsplit(place).scheme)
    except (ImportError, ValueError) as error:
        must = "must be a folder, or a URL that fsspec can reach here"
        raise ConfigError.of(path, must, given=place, hint=str(error)) from error


def local_path(place: str) -> Path | None:
    """Returns the path that a place is; None if it is a URL of something else."""
    if "://" not in place:
        return Path(place)
    url = urllib.parse.urlsplit(place)
    if url.scheme != "file" or url.netloc not in ("", "localhost"):
        return None
    return Path(urllib.request.url2pathname(url.path))


def _put_remote(place: str, beginning: bytes, payload: IO[bytes]) -> None:
    files, path = _open_remote(place)
    # One name: what a killed process left there is overwritten. Of two at once, as after a
    # partition of the network, the digest finds the mixture.
    temporary = f"{path}.tmp"
    with files.open(temporary, "wb") as file:
        write(file, beginning, payload)
    try:
        files.mv(temporary, path)
    except Exception:
        # Some servers refuse to move to where a file is.
        with suppress(FileNotFoundError):
            files.rm_file(path)
        files.mv(temporary, path)


def _get(place: str, most_bytes: int | None) -> bytes | None:
    size = -1 if most_bytes is None else most_bytes
    try:
        if (path := local_path(place)) is not None:
            with path.open("rb") as file:
                return file.read(size)
        files, remote = _open_remote(place)
        with files.open(remote, "rb") as file:
            content: bytes = file.read(size)
            return content
    except FileNotFoundError:
        return None


def _remove(place: str) -> None:
    if (path := local_path(place)) is not None:
        path.unlink(missing_ok=True)
        for left_behind in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
            left_behind.unlink(missing_ok=True)
        return
    files, remote = _open_remote(place)
    for each in (remote, f"{remote}.tmp"):
        if files.exists(each):
            files.rm_file(each)


def _open_remote(place: str) -> tuple[Any, str]:
    import fsspec

    files, path = fsspec.core.url_to_fs(place)
    # Listings are cached, and another process, or node, may have written there.
    files.invalidate_cache()
    folder = path.rsplit("/", 1)[0]
    if folder and folder != path:
        files.makedirs(folder, exist_ok=True)
    return files, path

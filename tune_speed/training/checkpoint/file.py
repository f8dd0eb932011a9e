"""The form of a checkpoint's file: three parts, of which only the last needs torch.

```
tune_speed checkpoint 1 <SHA-256 of all that follows, in hex>
<the header: JSON in one line>
<the payload: what torch.save wrote, read with weights_only=True alone>
```
"""

import hashlib
import re
import shutil
from typing import IO, Annotated

from pydantic import Field, ValidationError

from tune_speed.core.config import Config
from tune_speed.core.records import RecordedRecipe
from tune_speed.core.text import counted

FORMAT = 1
"""Version of the form, payload included."""
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
    """Returns the header at `begin`, and where the payload begins."""
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
    """Returns the header of a file of which no more than the beginning is there.

    Nothing is checked by its digest: for what only informs. Raises: BadCheckpoint.
    """
    first = _FIRST_LINE.match(beginning[:_MOST_FIRST_LINE_BYTES])
    if first is None or int(first[1]) != FORMAT:
        raise BadCheckpoint("it is no checkpoint of this version")
    return _header(beginning, first.end())[0]

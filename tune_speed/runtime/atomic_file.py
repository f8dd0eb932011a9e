"""Files that are there as a whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tune_speed.core.errors import writing


def replace_text(path: Path, text: str, *, hint: str = "") -> None:
    """Replaces a file, or a link's file, by a text. Raises: StorageError, ConfigError."""
    with writing(path, hint=hint), write_atomically(path) as file:
        file.write(text.encode())


def write_file(path: Path, content: bytes) -> None:
    """Writes a file, which may be a pipe. Raises: StorageError, ConfigError if it has no folder."""
    with writing(path):
        path.write_bytes(content)


@contextmanager
def write_atomically(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Yields a file that replaces `path` when the block ends, or is removed if the block fails.

    A killed writer leaves `<name>.<random>.tmp`. `durable` waits for the disk. Raises: OSError.
    """
    # A name of its own for each writer: several processes may write the same file at once.
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        # A new name is durable only once its folder is synced as well.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

import io
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.training.checkpoint.store import (
    BadCheckpoint,
    CheckpointStore,
    Header,
    check_place,
    discard,
    head,
    local_path,
    peek,
    saved_step,
    split,
    write,
)


def make_content(step: int = 3, payload: bytes = b"payload") -> tuple[bytes, io.BytesIO]:
    header = Header(
        identity={"trial": "t0000"},
        step=step,
        num_steps=9,
        recipe={},
        first_batch_size=8,
        started_at="2026-01-01",
        num_bytes=len(payload),
    )
    file = io.BytesIO(payload)
    return head(header, file), file


FTP_SERVER = """
import sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer
FTPHandler.authorizer = DummyAuthorizer()
FTPHandler.authorizer.add_user("user", "hush", sys.argv[1], perm="elradfmwMT")
server = FTPServer(("127.0.0.1", 0), FTPHandler)
print(server.address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def ftp_server(folder: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FTP_SERVER, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdigit(), "the server did not start"
        yield f"ftp://user:hush@127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(params=["path", "file", "memory", "ftp"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "ftp":
        with ftp_server(tmp_path) as address:
            yield f"{address}/checkpoints/t0000.ckpt"
        return
    prefix = {
        "path": str(tmp_path),
        "file": tmp_path.as_uri(),
        "memory": f"memory://{tmp_path}",
    }
    yield f"{prefix[request.param]}/checkpoints/t0000.ckpt"


def test_what_was_written_is_read_and_the_last_write_holds(place: str) -> None:
    assert CheckpointStore(place).read() is None
    for step in (3, 6):
        beginning, payload = make_content(step)
        CheckpointStore(place).write(beginning, payload)
        assert payload.closed
        assert CheckpointStore(place).read() == beginning + b"payload"
        assert saved_step(place) == step


def test_nothing_is_left_once_it_is_removed(place: str) -> None:
    CheckpointStore(place).write(*make_content())
    discard(place)
    assert CheckpointStore(place).read() is None and saved_step(place) is None
    discard(place)
    files, path = fsspec.core.url_to_fs(place)
    files.invalidate_cache()
    assert files.ls(path.rsplit("/", 1)[0], detail=False) == []


def test_what_a_killed_process_left_half_written_is_no_checkpoint_and_is_removed(tmp_path):
    place = tmp_path / "t0000.ckpt"
    code = (
        "import io, os, sys\n"
        "from tune_speed.training.checkpoint.store import CheckpointStore\n"
        "class Dies(io.BytesIO):\n"
        "    def read(self, *args):\n"
        "        if self.tell() > 100_000: os.kill(os.getpid(), 9)\n"
        "        return super().read(50_000)\n"
        "CheckpointStore(sys.argv[1]).write(b'begin', Dies(bytes(1_000_000)))\n"
    )
    beginning, payload = make_content()
    CheckpointStore(str(place)).write(beginning, payload)
    done = subprocess.run([sys.executable, "-c", code, str(place)], check=False)
    assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == 2
    assert CheckpointStore(str(place)).read() == beginning + b"payload"
    other = tmp_path / "t00001.ckpt.x.tmp"
    other.touch()
    discard(str(place))
    assert list(tmp_path.iterdir()) == [other]


def test_disk_that_is_full_leaves_the_earlier_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "t0000.ckpt"
    CheckpointStore(str(place)).write(*make_content())
    before = place.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot be saved: OSError.*File too large"):
            CheckpointStore(str(place)).write(b"begin", io.BytesIO(bytes(1_000_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["t0000.ckpt"]
    assert place.read_bytes() == before


def test_study_folder_that_is_not_there_is_not_made_up(tmp_path: Path) -> None:
    place = str(tmp_path / "study" / "checkpoints" / "t0000.ckpt")
    with pytest.raises(StorageError, match="No such file"):
        CheckpointStore(place).write(*make_content())
    assert list(tmp_path.iterdir()) == []


def test_server_that_does_not_answer_is_waited_for_once_and_shortly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = CheckpointStore(f"ftp://user:hush@127.0.0.1:{port}/c/t0000.ckpt", wait_s=0.5)
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"user:\*\*\*@.*no answer within 0.5 s") as error:
            store.read()
        assert time.monotonic() - began < 20
        assert "hush" not in str(error.value)
        began = time.monotonic()
        with pytest.raises(StorageError, match="has not answered an earlier call"):
            store.write(*make_content())
        assert time.monotonic() - began < 0.5


def test_server_that_is_not_there_is_an_error_without_its_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    store = CheckpointStore(f"ftp://user:hush@127.0.0.1:{port}/c/t0000.ckpt")
    with pytest.raises(StorageError, match="ConnectionRefusedError") as error:
        store.read()
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("place", "hint"),
    [("nosuch://bucket/c", "nosuch"), ("abfs://container/c", "adlfs")],
)
def test_place_that_no_library_reaches_is_refused_beforehand(place: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=r"search\.storage_path") as error:
        check_place(place, path="search.storage_path")
    assert hint in str(error.value)


@pytest.mark.parametrize("place", ["folder", "/folder", "file:///folder", "ftp://host/folder"])
def test_place_that_a_library_reaches_is_not_asked(place: str) -> None:
    check_place(place, path="search.storage_path")


def test_local_places_are_paths() -> None:
    assert local_path("a/b") == Path("a/b")
    assert local_path("file:///a%20b/c") == Path("/a b/c")
    assert local_path("memory://a") is None


HEADER = Header(
    identity={"trial": "t0000"},
    step=3,
    num_steps=9,
    recipe={"epochs": 2.0},
    first_batch_size=8,
    started_at="2026-01-01",
    num_bytes=7,
)


def make_file(header: Header = HEADER, payload: bytes = b"payload") -> bytes:
    file, content = io.BytesIO(), io.BytesIO(payload)
    write(file, head(header, content), content)
    return file.getvalue()


def test_file_gives_back_what_was_written() -> None:
    header, payload = split(make_file())
    assert header == HEADER and bytes(payload) == b"payload"
    assert peek(make_file()[:-7]) == HEADER


@given(place=st.integers(0, len(make_file()) - 1), change=st.integers(1, 255))
def test_file_with_any_byte_changed_is_refused(place: int, change: int) -> None:
    content = bytearray(make_file())
    content[place] ^= change
    with pytest.raises(BadCheckpoint):
        split(bytes(content))


@given(length=st.integers(0, len(make_file()) - 1))
def test_file_that_is_cut_off_anywhere_is_refused(length: int) -> None:
    with pytest.raises(BadCheckpoint):
        split(make_file()[:length])


@given(more=st.binary(min_size=1, max_size=5))
def test_file_with_more_at_its_end_is_refused(more: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        split(make_file() + more)


@given(content=st.binary(max_size=500))
def test_no_content_makes_the_reader_fail_otherwise(content: bytes) -> None:
    for read in (split, peek):
        with pytest.raises(BadCheckpoint):
            read(content)


def test_reasons_say_what_is_wrong() -> None:
    content = make_file()
    reasons = {
        b"": "it is no checkpoint",
        content[:-1]: "it is cut off",
        content[:100]: "cut off in its header",
        content[:-1] + b"X": "its digest is another",
        content.replace(b"checkpoint 1 ", b"checkpoint 7 "): "format 7, and this version has 1",
    }
    for changed, reason in reasons.items():
        with pytest.raises(BadCheckpoint, match=reason):
            split(changed)

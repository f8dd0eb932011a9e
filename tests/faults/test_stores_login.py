"""A search on an MLflow server with login and TLS; the secret is nowhere in what it leaves."""

import base64
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import Done, finished
from kept import check_curves
from plugging import STUDY, write
from servers import mlflow_server
from whole_searches import search_to_its_end

pytestmark = pytest.mark.slow

USER, PASSWORD = "keeper", "correct-horse-7731"
FORMS = [PASSWORD.encode(), *(base64.b64encode(f"{USER}:{PASSWORD}".encode()).split(b"="))[:1]]
"""How it might be written: as it is, and as it stands in a request."""


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Where Ray keeps its sessions; a short path, as sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="ts-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def test_search_with_login_and_tls_works_and_leaks_nothing(
    tmp_path: Path,
    ray_folder: Path,
    call: Callable[..., Done],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def show(*arguments: str, **variables: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return call(*arguments, folder=work)

    work = tmp_path / "work"
    work.mkdir()
    text = STUDY.replace("trials: 2", "trials: 1")
    (work / "tiny.yaml").write_text(f"{text}tracking: {{log_model: best}}\n")
    write(work)
    with mlflow_server(tmp_path / "server", login=(USER, PASSWORD), tls=True) as server:
        own = {**server.variables, "RAY_TMPDIR": str(ray_folder)}
        search = search_to_its_end(work, "--plugin", "my_nets.py", **own)
        assert "is logged: models:/" in search.out + search.err
        check_curves(f"sqlite:///{tmp_path}/server/mlflow.db", "tiny", finished(work))
        address = server.uri.replace("//", f"//{USER}:{PASSWORD}@")
        in_address = {
            "MLFLOW_TRACKING_URI": address,
            "MLFLOW_TRACKING_SERVER_CERT_PATH": str(server.certificate),
        }
        wrong = {**server.variables, "MLFLOW_TRACKING_PASSWORD": "wrong-horse-1"}
        refused = show("leaderboard", **wrong)
        assert refused.code == 4 and f"answered 401 to user '{USER}'" in refused.err, refused.err
        assert "wrong-horse" not in refused.out + refused.err
        shown: list[Done] = [
            show("leaderboard", **own),
            show("show", "tiny/t0000", **in_address),
            show("report", "tiny", **in_address),
        ]
    assert [done.code for done in shown] == [0, 0, 0], shown
    assert "tiny/t000" in shown[0].out and server.uri in shown[1].out
    said = "".join([search.out, search.err, *(done.out + done.err for done in shown)])
    assert not [form for form in FORMS if form.decode() in said]
    assert (work / "report.html").is_file() and any(ray_folder.rglob("*.out"))
    assert leaks(work) + leaks(ray_folder) + leaks(tmp_path / "server") == []


def leaks(folder: Path) -> list[Path]:
    """Returns the files that hold the secret, byte for byte."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 3
    return [path for path in files if any(form in path.read_bytes() for form in FORMS)]

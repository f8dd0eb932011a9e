"""The example of an own CNN on a folder of images, as a user runs it: real Ray, real trainings."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command import Done, finished, run_inside

from tune_speed.components.plugins import registry
from tune_speed.testing import contract_tests

EXAMPLE = Path(__file__).parent / "own_cnn"
FILES = ("own_cnn.py", "make_images.py", "flowers.yaml")
HASH = hashlib.sha256((EXAMPLE / "own_cnn.py").read_bytes()).hexdigest()[:16]

test_own_cnn = contract_tests(EXAMPLE / "own_cnn.py", fields={"own_cnn": {"width": 4}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("own_cnn")
    for name in FILES:
        shutil.copy(EXAMPLE / name, made)
    subprocess.run([sys.executable, "make_images.py"], cwd=made, check=True)
    return made


@pytest.fixture(scope="module")
def searched(folder: Path, session_cache: Path) -> Done:
    """A search of two trials, one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        smaller = ("--trials", "2", "--set", "search.concurrent=1")
        done = run_inside(
            *("search", "flowers.yaml", "--plugin", "own_cnn.py", *smaller), folder=folder
        )
        registry.unload()
        return done


@pytest.mark.slow
def test_search_finds_own_networks_that_learn(folder: Path, searched: Done) -> None:
    assert searched.code == 0, searched.err
    records = finished(folder, "flowers")
    assert len(records) == 2
    assert all(set(record["recipe"]["model"]) == {"own_cnn"} for record in records)
    assert any(record["status"] == "reached" for record in records)


@pytest.mark.slow
def test_records_have_the_plugins_hash(folder: Path, searched: Done) -> None:
    plugins = [record["plugins"] for record in finished(folder, "flowers")]
    assert plugins == [{"own_cnn.py": HASH}] * 2


@pytest.mark.slow
def test_best_recipe_trains_with_the_plugin_alone(
    folder: Path, searched: Done, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.unload()
    monkeypatch.setenv(registry.VARIABLE, "own_cnn.py")
    exported = call("best", "--study", "flowers", "--export", "best.yaml", folder=folder)
    assert exported.code == 0, exported.err
    monkeypatch.delenv(registry.VARIABLE)
    registry.unload()
    trained = call("train", "best.yaml", "--plugin", "own_cnn.py", "--json", folder=folder)
    assert trained.code == 0, trained.err
    assert trained.json["plugins"] == {"own_cnn.py": HASH}
    registry.unload()
    refused = call("train", "best.yaml", folder=folder)
    assert refused.code == 2
    assert "--plugin own_cnn.py" in refused.err


def test_images_are_the_same_whenever_they_are_made(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_images", EXAMPLE / "make_images.py")
    assert spec is not None and spec.loader is not None
    make_images = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_images)
    for name in ("a", "b"):
        make_images.main(tmp_path / name, images_per_class=3)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.png"))
    assert len(files) == 9
    assert all(
        (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        for file in files
    )

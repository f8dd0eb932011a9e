from pathlib import Path

import pytest

from tune_speed.core.folders import default_cache_dir, studies_folder


def test_studies_lie_where_the_user_says_or_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNE_SPEED_STUDIES", "mine")
    assert studies_folder() == tmp_path / "mine"
    monkeypatch.delenv("TUNE_SPEED_STUDIES")
    assert studies_folder() == tmp_path / "tune_speed_studies"


def test_cache_is_the_users_or_that_of_the_desktop_or_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("TUNE_SPEED_CACHE", "/own")
    assert default_cache_dir() == Path("/own")
    monkeypatch.delenv("TUNE_SPEED_CACHE")
    assert default_cache_dir() == Path("/xdg/tune_speed")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == tmp_path / ".cache/tune_speed"

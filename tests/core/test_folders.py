"""Where files lie, and what a trial costs: time on its clock, times the price of its devices."""

from pathlib import Path

import pytest
from helpers.making import make_record

from tune_speed.core.errors import ConfigError
from tune_speed.core.folders import default_cache_dir, studies_folder
from tune_speed.core.prices import own_prices, prices_file
from tune_speed.core.words import Device


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


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TUNE_SPEED_PRICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "tune_speed").mkdir()
    return prices_file()


def test_cost_is_hours_times_price_times_devices(file: Path) -> None:
    file.write_text("NVIDIA H200: 3.6\n")
    one, two = (make_record(time_s=10.0, device=f"{n}NVIDIA H200") for n in ("", "2 x "))
    assert one.cost_of(one.time_to_target_s) == pytest.approx(0.01)
    assert two.cost_of(two.time_to_target_s) == pytest.approx(0.02)
    assert (two.device.count, str(two.device.one)) == (2, "NVIDIA H200")
    assert one.cost_of(None) is None


def test_prices_of_the_study_come_before_those_of_the_user(file: Path) -> None:
    file.write_text("NVIDIA H200: 1\nNVIDIA A100: 2\n")
    record = make_record(device="NVIDIA H200").model_copy(update={"prices": {"NVIDIA H200": 5.0}})
    assert record.price_per_hour == 5.0
    elsewhere = record.model_copy(update={"device": Device(type="NVIDIA A100")})
    assert elsewhere.price_per_hour == 2.0


def test_without_prices_nothing_is_known_and_nothing_is_stored() -> None:
    record = make_record(device="NVIDIA H200")
    assert own_prices() == {} and record.price_per_hour is None
    assert "prices" not in record.model_dump()


def test_a_file_that_changes_is_read_again(file: Path) -> None:
    for price in (1.0, 2.0):
        file.write_text(f"NVIDIA H200: {price}\n")
        assert own_prices() == {"NVIDIA H200": price}


@pytest.mark.parametrize(
    "text", ["NVIDIA H200: -1", "NVIDIA H200: .inf", "- 1", "NVIDIA H200: free", "a: b: c"]
)
def test_a_file_of_no_prices_is_refused_by_name(text: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match="must have a price above 0") as caught:
        own_prices()
    assert str(file) in str(caught.value)

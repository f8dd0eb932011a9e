import io
from pathlib import Path
from typing import Any

import pytest
from helpers.experiments.profiles import make_profile, make_recipe_of
from helpers.texts import Texts
from rich.console import Console

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.experiments.profiling import output
from tune_speed.experiments.profiling.result import ProfileResult
from tune_speed.reporting.plot_style import check_format


def shown(found: ProfileResult) -> str:
    written = io.StringIO()
    for renderable in output.as_renderables(found):
        Console(width=100, file=written).print(renderable)
    return "\n".join(map(str.rstrip, written.getvalue().splitlines()))


def test_shares_are_those_of_all_phases() -> None:
    rows = output.phase_rows(make_profile(data_wait_ms=45.0))
    assert sum(row.share or 0.0 for row in rows) == pytest.approx(1.0)
    assert rows[0].words == "waiting for data" and rows[0].share == pytest.approx(45 / 143)
    assert "forward_backward" not in {row.phase for row in rows}


SHOWN: dict[str, dict[str, Any]] = {
    "plain": {},
    "averaging was not measured": {"sync_ms": None, "recipe": make_recipe_of(devices=2)},
    "overlap on a GPU": {"device_type": "cuda", "overlap_ms": 12.0},
    "borders on a CPU": {"overlap_ms": 12.0},
    "unrest": {"overlap_ms": -3.0},
    "nothing copied": {"device_type": "cuda", "host_to_device_ms": 0.0},
}


@pytest.mark.parametrize("name", SHOWN)
def test_tables_sentences_and_advice_are_those_kept(name: str, kept_text: Texts) -> None:
    kept_text(shown(make_profile(**SHOWN[name])))


def test_averaging_that_could_not_be_measured_is_no_zero() -> None:
    found = make_profile(**SHOWN["averaging was not measured"])
    [row] = [row for row in output.phase_rows(found) if row.phase == "sync"]
    assert (row.ms, row.share) == (None, None)


def test_rows_have_the_step_beside_each_phase() -> None:
    assert {row["step_ms"] for row in output.csv_rows(make_profile())} == {100.0}


def test_result_is_the_same_after_json() -> None:
    found = make_profile()
    assert ProfileResult.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_picture_is_written(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "below" / f"profile{suffix}"
    output.plot_profile(make_profile(device_type="cuda", launch_frac=0.9), path)
    assert path.read_bytes()[:4] in (b"\x89PNG", b"<?xm")


@pytest.mark.parametrize("changes", [{}, {"bounds": None}, {"name": "$a$ \x1b[31m"}])
def test_texts_of_the_picture_do_not_overlap(changes: dict[str, Any]) -> None:
    found = make_profile(data_wait_ms=45.0).model_copy(update=changes)
    figure = output.profile_figure(found)
    figure.draw_without_rendering()
    assert len(figure.axes) == (1 if found.bounds is None else 2)
    for panel in figure.axes:
        boxes = [text.get_window_extent() for text in panel.texts]
        legend = panel.get_legend()
        assert legend is not None
        boxes += [legend.get_window_extent(), panel.xaxis.label.get_window_extent()]
        for i, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[:i])
        assert legend.get_window_extent().y0 >= 0
    assert output.advice_texts(found) == [output.NOTHING]


def test_picture_in_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--out must be a file that ends in \.png, \.pdf, \.svg"):
        check_format("--out", Path("profile.gif"))


def test_picture_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        output.plot_profile(make_profile(), tmp_path / "file" / "profile.png")

"""Tables, rows, sentences and the picture say what the figures are."""

import io
from pathlib import Path
from typing import Any

import pytest
from helpers.experiments.profiles import make_profile, make_recipe_of
from rich.console import Console

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.experiments.profiling.output import (
    NOTHING,
    advice_texts,
    as_renderables,
    check_format,
    csv_rows,
    phase_rows,
    plot_profile,
    profile_figure,
    sentences,
)
from tune_speed.experiments.profiling.result import ProfileResult


def shown(found: ProfileResult) -> str:
    written = io.StringIO()
    for renderable in as_renderables(found):
        Console(width=100, file=written).print(renderable)
    return written.getvalue()


def test_shares_are_those_of_all_phases() -> None:
    rows = phase_rows(make_profile(data_wait_ms=45.0))
    assert sum(row.share or 0.0 for row in rows) == pytest.approx(1.0)
    assert rows[0].words == "waiting for data" and rows[0].share == pytest.approx(45 / 143)
    assert "forward_backward" not in {row.phase for row in rows}


def test_averaging_that_could_not_be_measured_is_no_zero() -> None:
    found = make_profile(sync_ms=None, recipe=make_recipe_of(devices=2))
    [row] = [row for row in phase_rows(found) if row.phase == "sync"]
    assert (row.ms, row.share) == (None, None)
    assert "could not be measured" in shown(found)
    assert any("One of 2 devices" in sentence for sentence in sentences(found))


def test_table_has_phases_rates_and_advice() -> None:
    text = shown(make_profile())
    for part in ("backward", "60.000", "60.0%", "matrix products, bf16", "4 GFLOP", NOTHING[:40]):
        assert part in text


def test_overlap_is_a_result_on_a_gpu_and_the_cost_of_borders_on_a_cpu() -> None:
    gpu, cpu = (
        " ".join(sentences(make_profile(device_type=kind, overlap_ms=12.0)))
        for kind in ("cuda", "cpu")
    )
    assert "12 ms (12.0%) more, which overlap hides" in gpu
    assert "12 ms (12.0%) more, by the borders' cost" in cpu
    assert "less" in " ".join(sentences(make_profile(overlap_ms=-3.0)))


def test_where_nothing_is_copied_a_sentence_says_why() -> None:
    assert "it is the host" in " ".join(sentences(make_profile()))
    found = make_profile(device_type="cuda", host_to_device_ms=0.0)
    assert "Nothing was copied from the host" in " ".join(sentences(found))


def test_rows_have_the_step_beside_each_phase() -> None:
    assert {row["step_ms"] for row in csv_rows(make_profile())} == {100.0}


def test_result_is_the_same_after_json() -> None:
    found = make_profile()
    assert ProfileResult.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_picture_is_written(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "below" / f"profile{suffix}"
    plot_profile(make_profile(device_type="cuda", launch_frac=0.9), path)
    assert path.read_bytes()[:4] in (b"\x89PNG", b"<?xm")


@pytest.mark.parametrize("changes", [{}, {"bounds": None}, {"name": "$a$ \x1b[31m"}])
def test_texts_of_the_picture_do_not_overlap(changes: dict[str, Any]) -> None:
    found = make_profile(data_wait_ms=45.0).model_copy(update=changes)
    figure = profile_figure(found)
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
    assert advice_texts(found) == [NOTHING]


def test_picture_in_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be a file that ends in \.png, \.svg, \.pdf"):
        check_format(Path("profile.gif"))


def test_picture_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        plot_profile(make_profile(), tmp_path / "file" / "profile.png")

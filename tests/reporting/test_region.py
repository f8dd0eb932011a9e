import numpy as np
import pytest

from tune_speed.reporting.importance import Column, columns_of, matrix_of


def columns(rows) -> dict[str, Column]:
    return {column.name: column for column in columns_of(rows)}


def test_what_never_changed_is_no_column():
    assert list(columns([{"a": 1, "b": "x", "c": index} for index in range(3)])) == ["c"]


def test_numbers_over_decades_are_logarithmic_unless_they_lie_evenly():
    rng = np.random.default_rng(0)
    rows = [{"lr": 10 ** rng.uniform(-4, 0), "share": rng.random()} for _ in range(100)]
    rows += [{"lr": 1e-4, "share": 1e-4}, {"lr": 1.0, "share": 1.0}]
    found = columns(rows)
    assert found["lr"].is_log
    assert found["lr"].code(0.01) == pytest.approx(0.5)
    assert found["share"].code(0.5) == pytest.approx(0.5, abs=1e-3)


def test_few_numbers_are_levels():
    column = columns([{"batch_size": size} for size in (64, 128, 512)] * 4)["batch_size"]
    assert column.levels == pytest.approx([0, 64 / 448, 1])


def test_null_and_booleans_are_categories():
    rows = [{"clip": value} for value in (0.01, None)] + [{"flag": True}, {"flag": False}]
    found = columns(rows)
    assert found["clip"].categories == ("0.01", "None")
    assert found["flag"].categories == ("False", "True")


def test_what_plays_no_part_has_the_median_of_the_others():
    rows = [{"a": "x", "b": 0.0}, {"a": "y", "b": 2.0}, {"b": 1.0}, {"a": "y"}]
    assert matrix_of(columns_of(rows), rows).tolist() == [[0, 0], [1, 1], [1, 0.5], [1, 0.5]]

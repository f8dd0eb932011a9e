import numpy as np
import pytest

from tune_speed.reporting.importance.main_effects import (
    ABSENT,
    codes_of,
    columns_of,
    draw,
    matrix_of,
)


def _columns(rows):
    return {column.name: column for column in columns_of(rows)}


def test_what_never_changed_is_no_column():
    rows = [{"a": 1, "b": "x", "c": index} for index in range(3)]
    assert list(_columns(rows)) == ["c"]


def test_numbers_over_decades_are_logarithmic_unless_they_lie_evenly():
    rng = np.random.default_rng(0)
    rows = [{"lr": 10 ** rng.uniform(-4, 0), "share": rng.random()} for _ in range(100)]
    rows += [{"lr": 1e-4, "share": 1e-4}, {"lr": 1.0, "share": 1.0}]
    columns = _columns(rows)
    assert columns["lr"].is_log
    assert columns["lr"].code(0.01) == pytest.approx(0.5)
    assert columns["share"].code(0.5) == pytest.approx(0.5, abs=1e-3)


def test_few_numbers_are_drawn_as_they_were_tried():
    rows = [{"batch_size": size} for size in (64, 128, 512)] * 4
    column = _columns(rows)["batch_size"]
    drawn = column.draw(np.random.default_rng(0), 3000)
    values, counts = np.unique(drawn, return_counts=True)
    assert values == pytest.approx([0, 64 / 448, 1])
    assert counts == pytest.approx([1000] * 3, rel=0.1)
    assert list(column.groups(values)) == [0, 1, 2]


def test_null_and_booleans_are_categories():
    rows = [{"clip": value} for value in (0.01, None)] + [
        {"flag": value} for value in (True, False)
    ]
    columns = _columns(rows)
    assert columns["clip"].categories == ("0.01", "None")
    assert columns["flag"].categories == ("False", "True")


def test_a_parameter_hangs_on_the_value_that_its_path_goes_through():
    rows = [
        {"opt": "sgd", "opt.sgd.lr": 0.1, "batch": 1},
        {"opt": "sgd", "opt.sgd.lr": 0.2, "batch": 2},
        {"opt": "adam", "opt.adam.lr": 0.3, "batch": 3},
        {"opt": "adam", "opt.adam.lr": 0.4, "batch": 4},
    ]
    columns = _columns(rows)
    assert columns["opt.sgd.lr"].parent == ("opt", columns["opt"].code("sgd"))
    assert columns["batch"].parent is None
    drawn = draw(list(columns.values()), size=400, rng=np.random.default_rng(0))
    is_sgd = drawn["opt"] == columns["opt"].code("sgd")
    assert ((drawn["opt.sgd.lr"] == ABSENT) == ~is_sgd).all()
    assert ((drawn["opt.adam.lr"] == ABSENT) == is_sgd).all()


def test_absence_is_passed_down():
    rows = [
        {"a": "on", "a.on.b": "deep", "a.on.b.deep.c": 1.0},
        {"a": "on", "a.on.b": "deep", "a.on.b.deep.c": 2.0},
        {"a": "on", "a.on.b": "flat"},
        {"a": "off"},
    ]
    drawn = draw(columns_of(rows), size=400, rng=np.random.default_rng(0))
    assert (drawn["a.on.b.deep.c"] != ABSENT).mean() == pytest.approx(0.25, abs=0.07)


def test_an_absent_category_is_none_of_them():
    rows = [{"a": "x"}, {"a": "y"}, {}]
    columns = columns_of(rows)
    matrix = matrix_of(columns, codes_of(columns, rows))
    assert matrix.tolist() == [[1, 0], [0, 1], [0, 0]]

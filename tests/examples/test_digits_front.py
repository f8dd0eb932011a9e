"""The notebook `digits_front.ipynb`: its cells run one after the other, as in a fresh kernel."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).with_name("digits_front.ipynb")
SMALLER = 'trials=3, set={"recipe.epochs.high": 5, "search.concurrent": 1}'


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell; returns its last expression, which a notebook shows."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), str(NOTEBOOK), "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def test_no_outputs_are_stored() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    stored = [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    assert stored == []


@pytest.mark.slow
def test_cells_search_show_the_leaderboard_and_draw_the_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TUNE_SPEED_STUDIES")
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [run_cell(source.replace("trials=4", SMALLER), names) for source in code_cells()]
    study, front, ended = names["study"], names["front"], names["ended"]
    assert (tmp_path / "mlflow.db").is_file()
    assert study.folder == tmp_path / "tune_speed_studies" / "digits_front"
    assert len(study.records) == len(names["trials"]) == 3
    assert "digits_front/t000" in shown[0]._repr_html_() or study.best is None
    points = list(zip(ended["train_s"], ended["final_metric"], strict=True))
    assert [*zip(front["train_s"], front["final_metric"], strict=True)] == [
        (time_s, score)
        for time_s, score in points
        if not any(t <= time_s and s >= score and (t, s) != (time_s, score) for t, s in points)
    ]
    (panel,) = names["figure"].axes
    assert panel.collections[0].get_offsets().shape == (len(ended), 2)
    matplotlib.pyplot.close("all")

import io
from typing import Any

import pytest
from helpers.experiments.profiles import make_profile, make_recipe_of
from helpers.texts import Texts
from rich.console import Console

from tune_speed.experiments.profiling import output
from tune_speed.experiments.profiling.result import ProfileResult


def shown(found: ProfileResult) -> str:
    written = io.StringIO()
    for renderable in output.as_renderables(found):
        Console(width=100, file=written).print(renderable)
    return "\n".join(map(str.rstrip, written.getvalue().splitlines()))


def test_shares_are_those_of_all_phases() -> None:
    rows = {row["phase"]: row for row in output.phase_rows(make_profile(data_wait_ms=45.0))}
    assert rows["waiting for a batch"]["share"] == f"{45 / 143:.1%}"
    assert "recorded step" not in rows and rows["optimizer"]["of the measured peak"]


SHOWN: dict[str, dict[str, Any]] = {
    "plain": {},
    "two devices": {"device_type": "cuda", "recipe": make_recipe_of(devices=2)},
    "no kernel seen": {"device_type": "cuda", "idle_ms": None},
}


@pytest.mark.parametrize("name", SHOWN)
def test_tables_sentences_and_advice_are_those_kept(name: str, kept_text: Texts) -> None:
    kept_text(shown(make_profile(**SHOWN[name])))


def test_result_is_the_same_after_json() -> None:
    found = make_profile()
    assert ProfileResult.model_validate_json(found.model_dump_json()) == found

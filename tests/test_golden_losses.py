"""Losses are what they were when the file of golden losses was written."""

import json
import platform

import pytest
from helpers.training.golden import FILE, RECIPES, Losses, losses_as_everywhere


@pytest.fixture(scope="module")
def losses() -> Losses:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the golden losses are those of x86-64 processors")
    return losses_as_everywhere()


@pytest.mark.parametrize("name", RECIPES)
def test_losses_are_unchanged(losses: Losses, name: str) -> None:
    golden = json.loads(FILE.read_text())[name]
    for ours, kept in zip(losses[name], golden, strict=True):
        assert ours == pytest.approx(kept, rel=1e-4, abs=1e-4)

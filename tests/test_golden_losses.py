"""Losses are what they were when the file of golden losses was written."""

import json

import pytest
from golden import FILE, RECIPES, losses_of, processor


@pytest.mark.parametrize("name", RECIPES)
def test_losses_are_unchanged(name: str) -> None:
    # Processors differ, a little even of one kind; bf16 rounds to three digits.
    within = 0.05 if name == "bf16" else 2e-3
    kept = json.loads(FILE.read_text())[processor()]
    for losses, golden in zip(losses_of(name), kept[name], strict=True):
        assert losses == pytest.approx(golden, rel=within, abs=within)

"""Texts that people read, kept in one file a room: `tests/ROOM/texts.yaml`, an entry a test.

`pytest --keep-texts FOLDER` (without `-n`) writes what its tests show now; look at the diff.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

TESTS = Path(__file__).parents[1]


class Texts:
    """The kept texts of one test's room; called with what the test shows."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        file = request.path.relative_to(TESTS)
        self._file = TESTS / file.parts[0] / "texts.yaml"
        self._test = f"{file.stem}::{request.node.name}"
        self._keeps = request.config.getoption("--keep-texts")

    def __call__(self, text: str, name: str = "") -> None:
        """Holds `text` against what is kept of this test, under `name` where it shows several."""
        key = f"{self._test} {name}".rstrip()
        kept = yaml.safe_load(self._file.read_text()) if self._file.exists() else {}
        if self._keeps:
            self._file.write_text(as_yaml({**kept, key: text}))
            return
        assert text == kept.get(key), f"{key} of {self._file}: see tests/helpers/texts.py"


class _Blocks(yaml.SafeDumper):
    """Writes texts of several lines as they are read."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else "")


_Blocks.add_representer(str, _block)


def as_yaml(kept: dict[str, Any]) -> str:
    return yaml.dump(kept, Dumper=_Blocks, width=1000, allow_unicode=True)

"""Python with this folder on PYTHONPATH notes in the file DECODES that it decodes a data set."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from helpers.after_import import after_import


def _count_builds(cache: ModuleType) -> None:
    build = cache._build

    def counted(*arguments: Any) -> Any:
        with open(os.environ["DECODES"], "a") as file:
            file.write(f"{os.getpid()}\n")
        return build(*arguments)

    cache._build = counted  # type: ignore[attr-defined]


if "DECODES" in os.environ:
    after_import("tune_speed.data.cache", _count_builds)

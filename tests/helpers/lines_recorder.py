"""Records which lines of the package are run: `pytest --record-lines FOLDER`.

`tests/coverage_by_room.py` reads what each process of a run writes there at its end. slipcover puts
probes into functions when they are imported: tracing, which coverage.py needs on Python 3.11, makes
the fast set 1.7 times as long.
"""

import json
import os
from pathlib import Path

from slipcover import Slipcover
from slipcover.importer import FileMatcher, ImportManager

PACKAGE = Path(__file__).resolve().parents[2] / "tune_speed"


class LinesRecorder:
    """Sees what is imported from now on; the package must not have been."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # With `source`, files that nothing imports count with all their lines.
        self._slipcover = Slipcover(source=[str(PACKAGE)])
        ImportManager(self._slipcover, FileMatcher(sources=[PACKAGE])).__enter__()

    def pytest_unconfigure(self) -> None:
        files = self._slipcover.get_coverage()["files"]
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{os.getpid()}.json").write_text(json.dumps(files))

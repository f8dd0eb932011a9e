"""A study whose `concurrent: auto` has become a number, measured or remembered."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from tune_speed.study.file import StudyFile
from tune_speed.tuning.concurrency import Packing
from tune_speed.tuning.ray.node_query import Node, alive_nodes
from tune_speed.tuning.ray.nodes import Nodes
from tune_speed.tuning.ray.packing_probe import choose

FILE = "packing.json"
"""In the study's folder."""


def packed(
    study: StudyFile, nodes: Nodes, *, folder: Path, on_line: Callable[[str], None]
) -> tuple[StudyFile, Packing | None]:
    """Returns the study with numbers for `concurrent: auto`; any other study as it is, and None.

    What was measured is kept in the study's folder, and holds until what it was measured for
    changes.

    Args:
        study: what is searched.
        nodes: that run its trials, settled.
        folder: of the study.
        on_line: shows a line to the user.
    """
    if study.search.concurrent != "auto":
        return study, None
    allowed = nodes.allowed()
    there = [node for node in alive_nodes() if not allowed or node.node_id in allowed]
    asked = _asked(study, there)
    packing, kept = _earlier(folder, asked), "as measured before: "
    if packing is None:
        on_line("measuring how many trials at a time finish most an hour …")
        packing, kept = choose(study, there).model_copy(update={"asked": asked}), ""
        _keep(packing, folder)
    on_line(kept + packing.line())
    resources = study.search.resources.model_copy(update={"gpu": packing.gpu})
    update = {"concurrent": packing.concurrent, "resources": resources}
    return replace(study, search=study.search.model_copy(update=update)), packing


def _asked(study: StudyFile, there: Sequence[Node]) -> dict[str, str]:
    """Returns what a choice hangs on; a study stays on one type of device as it is."""
    cores, gpus = (sum(n.resources.get(name, 0.0) for n in there) for name in ("CPU", "GPU"))
    return {
        "resources": study.search.resources.model_dump_json(),
        "there": f"{len(there)} nodes, {cores:g} CPU, {gpus:g} GPU",
    }


def _earlier(folder: Path, asked: dict[str, str]) -> Packing | None:
    """Returns what was measured for the same before; None where nothing was, or it is damaged."""
    try:
        packing = Packing.model_validate_json((folder / FILE).read_text())
    except (OSError, ValidationError):
        return None
    return packing if packing.asked == asked else None


def _keep(packing: Packing, folder: Path) -> None:
    """Writes down what was measured; a disk that is full is the ledger's to complain of."""
    if packing.gains:
        with suppress(OSError):
            (folder / FILE).write_text(packing.model_dump_json(indent=2))

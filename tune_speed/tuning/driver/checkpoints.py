"""Where the trials of a study are saved while they run, as the driver sees it.

The process of a trial writes its checkpoint, and removes it when the trial has an outcome. What a
killed process left is cleared when a session begins and ends.
"""

from collections.abc import Container
from contextlib import suppress
from functools import partial
from pathlib import Path

import fsspec

from tune_speed.study.settings import SearchConfig
from tune_speed.tracking.store.deadline import within
from tune_speed.training.checkpoint.store import check_place, local_path, saved_step
from tune_speed.training.trial import CheckpointPlan

SUFFIX = ".ckpt"
# Time limit of clearing [s]; the rest is for the next session.
CLEAR_S = 20.0
# Time limit of reading a checkpoint's header, for which the driver waits [s].
LOOK_S = 5.0


class Checkpoints:
    """The places of a study's checkpoints."""

    def __init__(self, search: SearchConfig, *, study: str, folder: Path) -> None:
        """Makes the folder, where it is one.

        `search` says whether and where; in a shared place, the study has a folder of its name.
        Otherwise it is in `folder`, the study's.

        Raises: ConfigError if the place is a URL for which a library is missing.
        """
        self._every_s = search.checkpoint_every_s
        self.place = _place(search.storage_path, study, folder)
        if self._every_s is None:
            return
        check_place(self.place, path="search.storage_path")
        if (path := local_path(self.place)) is not None:
            with suppress(OSError):  # Trials say so in their notes, and run without.
                path.mkdir(parents=True, exist_ok=True)

    def plan(self, trial_id: str) -> CheckpointPlan | None:
        """Returns where and how often a trial is saved."""
        if self._every_s is None:
            return None
        place = f"{self.place}/{trial_id}{SUFFIX}"
        return CheckpointPlan(place=place, every_s=self._every_s)

    def saved_step(self, trial_id: str) -> int | None:
        """Returns the step that a trial would resume from; None if it would start from scratch."""
        plan = self.plan(trial_id)
        return None if plan is None else saved_step(plan.place, wait_s=LOOK_S)

    def clear(self, finished: Container[str]) -> None:
        """Removes what trials left that have their record. Waits `CLEAR_S` at most."""
        if self._every_s is None:
            return
        # In a thread: a shared place may not answer, and the search begins and ends all the same.
        # Any error is a backend's own: what is left costs space, no record.
        with suppress(Exception):
            within(CLEAR_S, partial(self._clear, finished))

    def _clear(self, finished: Container[str]) -> None:
        files, place = fsspec.core.url_to_fs(self.place)
        for path in files.ls(place, detail=False) if files.exists(place) else []:
            trial_id, suffix, rest = path.rstrip("/").rpartition("/")[2].partition(SUFFIX)
            # Others' files may lie there too.
            if suffix and rest[:1] in ("", ".") and trial_id in finished:
                files.rm_file(path)


def _place(storage_path: str | None, study: str, folder: Path) -> str:
    if storage_path is None:
        return str(folder / "checkpoints")
    if "://" in storage_path:
        return f"{storage_path.rstrip('/')}/{study}"
    # Trial processes have working folders of their own.
    return str(Path(storage_path).expanduser().absolute() / study)

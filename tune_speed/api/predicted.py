"""Images classified by a saved network, and how often that is right where classes are known."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType

from tune_speed.api.entry import check_least, in_python, load_plugins
from tune_speed.api.progress import Progress
from tune_speed.api.shown import Shown
from tune_speed.core.errors import ConfigError, writing
from tune_speed.core.text import counted
from tune_speed.experiments.predictions import columns_of, labelled, predictions, values_of
from tune_speed.reporting.table import Table
from tune_speed.runtime.device import resolve_device
from tune_speed.runtime.process import stop_signals
from tune_speed.training.saved_model import ModelFacts, SavedModel

Row = dict[str, Any]
MOST_CLASSES = 20
"""Of a confusion matrix that is shown as a table."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Predicted(Shown):
    """The classes of images, by a saved network."""

    rows: tuple[Row, ...]
    """One an image: `path`, `class`, `chance`; `class_2`, … by `top`; `classes`, if several."""
    confusion: NDArray[np.int64]
    """Images by true and by predicted class, (K, K), of those in folders of classes' names."""
    damaged: tuple[str, ...]
    """What is wrong with each file that cannot be used."""
    facts: ModelFacts
    was_stopped: bool
    """Whether Ctrl-C ended it, with the images before."""

    @property
    def accuracy(self) -> float | None:
        """Share of the images of a known class that are right; None: there are none."""
        known = int(self.confusion.sum())
        return int(self.confusion.trace()) / known if known else None

    def __repr__(self) -> str:
        known = "" if self.accuracy is None else f", accuracy {self.accuracy:.4f}"
        return f"Predicted({counted(len(self.rows), 'image')}{known})"

    def parts(self) -> Sequence[RenderableType]:
        """Returns the accuracy, and the confusion matrix of at most 20 classes."""
        names, of = self.facts.class_names, self.facts
        if self.accuracy is None:
            return (f"{counted(len(self.rows), 'image')}; no folder has a class's name",)
        known = counted(int(self.confusion.sum()), "image")
        saved = f"saved with {of.metric} {of.value:.4f} on its {of.part} part"
        head = f"accuracy {self.accuracy:.4f} of {known} ({saved})"
        if len(names) > MOST_CLASSES:
            return (head,)
        columns = dict(zip(names, self.confusion.T.tolist(), strict=True))
        return (head, Table.of_columns({"true ↓ predicted →": names, **columns}))

    def as_dict(self) -> dict[str, Any]:
        """Returns predictions, accuracy, confusion matrix and damaged files."""
        return {
            "accuracy": self.accuracy,
            "classes": list(self.facts.class_names),
            "confusion": None if self.accuracy is None else self.confusion.tolist(),
            "damaged": list(self.damaged),
            "predictions": list(self.rows),
        }


@in_python
def predict(
    model: str | Path,
    images: str | Path | Sequence[str | Path],
    *,
    output: str | Path | None = None,
    top: int = 1,
    progress: bool | Progress | None = None,
    plugins: Sequence[str | Path] = (),
) -> Predicted:
    """Classifies images by a saved network; `tune-speed predict` as a call.

    Images are decoded, cut and normalised as those that it was evaluated on.

    Args:
        model: a file of `train(…, save=…)` or `certify(…, save=…)`.
        images: folders and files. Where folders have the classes' names, accuracy and confusion
            matrix are found.
        output: .csv or .jsonl file that gets a line an image as it is done.
        top: classes named for each image, the likeliest first.
        progress: as of `search`.
        plugins: as of `search`.

    Raises: ConfigError, DataError, StorageError.
    """
    check_least("top", top)
    load_plugins(plugins)
    saved, shown = SavedModel.read(Path(model), resolve_device("auto")), Progress.of(progress)
    facts, places = saved.facts, [images] if isinstance(images, str | Path) else images
    files = labelled([*map(Path, places)], facts.class_names)
    rows: list[Row] = []
    damaged: list[str] = []
    confusion = np.zeros((len(facts.class_names),) * 2, np.int64)
    columns = columns_of(facts, top)
    with _writing(output, columns) as write, stop_signals(SIGINT) as is_stopped:
        made = predictions(saved, [file for file, _ in files])
        for done, ((file, label), found) in enumerate(zip(files, made, strict=True), start=1):
            if isinstance(found, str):
                damaged.append(found)
            else:
                rows.append(dict(zip(columns, values_of(file, found, facts, top), strict=True)))
                write(rows[-1])
                confusion[label, found.argmax()] += label >= 0
            shown.decoded(done, len(files), doing="classifying", did="classified")
            if is_stopped():
                break
    return Predicted(
        rows=tuple(rows),
        confusion=confusion,
        damaged=tuple(damaged),
        facts=facts,
        was_stopped=len(rows) + len(damaged) < len(files),
    )


@contextmanager
def _writing(output: str | Path | None, columns: list[str]) -> Iterator[Callable[[Row], object]]:
    """Yields what writes a row. Raises: ConfigError, StorageError."""
    path = Path(os.devnull if output is None else output)
    if output is not None and path.suffix not in (".csv", ".jsonl"):
        raise ConfigError.of("output", "must end in .csv or .jsonl", given=str(path))
    with writing(path), path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            yield lambda row: file.write(f"{json.dumps(row)}\n")
        else:
            table = csv.DictWriter(file, columns, lineterminator="\n")
            table.writeheader()
            yield table.writerow

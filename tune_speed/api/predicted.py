"""Images classified by a saved network, and how often that is right where classes are known."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType

from tune_speed.api.entry import check_least, in_python, load_plugins
from tune_speed.api.progress import Progress
from tune_speed.api.shown import Shown
from tune_speed.core.errors import ConfigError, unwritable
from tune_speed.core.text import counted
from tune_speed.experiments.predictions import labelled, predictions, row_of
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
        damaged = f", {counted(len(self.damaged), 'damaged file')}" if self.damaged else ""
        return f"Predicted({counted(len(self.rows), 'image')}{known}{damaged})"

    def parts(self) -> Sequence[RenderableType]:
        """Returns the accuracy, and the confusion matrix of at most 20 classes."""
        names, known = self.facts.class_names, counted(int(self.confusion.sum()), "image")
        if self.accuracy is None:
            return (f"{counted(len(self.rows), 'image')}; no folder has a class's name",)
        right = f"accuracy {self.accuracy:.4f}, {self.confusion.trace():,} of {known}"
        saved = f"{self.facts.metric} {self.facts.value:.4f} on its {self.facts.part} part"
        if len(names) > MOST_CLASSES:
            return (f"{right}; saved with {saved}",)
        columns = dict(zip(names, self.confusion.T.tolist(), strict=True))
        title = "images by true class (rows) and by predicted class"
        table = Table.of_columns({title: names, **columns}, left=(title,))
        return (f"{right}; saved with {saved}", table)

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
    output: str | Path | TextIO | None = None,
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
    with _writing(output) as write, stop_signals(SIGINT) as is_stopped:
        made = predictions(saved, [file for file, _ in files])
        for done, ((file, label), found) in enumerate(zip(files, made, strict=True), start=1):
            if isinstance(found, str):
                damaged.append(found)
            else:
                rows.append(row_of(file, found, facts, top))
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
def _writing(output: str | Path | TextIO | None) -> Iterator[Callable[[Row], object]]:
    """Yields what writes a row. Raises: ConfigError, StorageError."""
    if output is None:
        yield lambda row: None
    elif not isinstance(output, str | Path):
        yield _csv(output)
    elif (path := Path(output)).suffix not in (".csv", ".jsonl"):
        raise ConfigError.of("output", "must end in .csv or .jsonl", given=str(path))
    else:
        try:
            with path.open("w", encoding="utf-8", newline="") as file:
                is_csv = path.suffix == ".csv"
                yield _csv(file) if is_csv else lambda row: file.write(f"{json.dumps(row)}\n")
        except OSError as error:
            raise unwritable(path, error) from error


def _csv(file: TextIO) -> Callable[[Row], object]:
    writer = csv.writer(file, lineterminator="\n")
    headings: list[list[str]] = []

    def write(row: Row) -> None:
        if not headings:
            headings.append([*row])
            writer.writerow(row)
        writer.writerow(row.values())

    return write

"""Images in one folder a class."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import DataError
from tune_speed.core.text import counted
from tune_speed.data.base import Encoded, EncodedData, EncodedPart
from tune_speed.data.datasets.decoding import FORMATS, SUFFIXES
from tune_speed.data.datasets.image_files import ImageFiles

ClassFiles = dict[str, list[Path]]
"""Image files by class folder, both in name order."""


class ImageFolder(ImageFiles):
    """Image files in `root/train/<class>/`, with `root/test/` or else `root/val/` as test part.

    Parts are known by their usual names in any letter case; beside a test part, a validation part
    is what a search is judged on. Where there are none, the classes are the folders of `root`, or
    of the only folder in it, and a part of the images is set aside for tests. Classes are numbered
    in name order; hidden files and those of systems are passed over, links followed.
    """

    location_fields: ClassVar[frozenset[str]] = frozenset({"root"})

    root: str
    """Folder that holds `train`, or the class folders themselves."""

    def num_train(self) -> int:
        found = self._found()
        return _count(found["train"]) + _count(found.get("validation", {}))

    def num_validation(self) -> int:
        return _count(self._found().get("validation", {}))

    def num_test(self) -> int | None:
        found = self._found()
        return _count(found["test"]) if "test" in found else None

    def sources(self) -> list[Path]:
        return [path for of in self._found().values() for files in of.values() for path in files]

    def notes(self) -> Iterator[str]:
        place, parts = parts_in(Path(self.root))
        if place != Path(self.root):
            yield f"classes are looked for in {place}"
        if "test" in parts and PARTS[parts["test"].name.lower()] != "test":
            yield f"`{parts['test'].name}` is the test part, as there is no other"
        tops = [*parts.values()] or [place]
        beside = [path for top in {place, *tops} for path in top.iterdir() if is_image(path)]
        below = [path for top in tops for each in folders_in(top) for path in files_below(each)]
        others = [path for path in below if not is_image(path)]
        for files, where in ((beside, " beside class folders"), (others, "")):
            kinds = Counter(path.suffix.lower() or "no suffix" for path in files).most_common(4)
            named = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
            if files:
                number = counted(len(files), "file")
                yield f"not read{where}: {number} ({named}), such as {min(files)}"

    def listing(self) -> EncodedData:
        found = self._found()
        number = {name: place for place, name in enumerate(found["train"])}
        parts = {
            part: [(path, number[name]) for name, files in of.items() for path in files]
            for part, of in found.items()
        }
        held = parts.pop("validation", [])
        parts["train"] += held

        def part(of: list[tuple[Path, int]]) -> EncodedPart:
            labels = np.array([label for _, label in of])
            return EncodedPart(self.root, lambda: (Encoded(p, str(p)) for p, _ in of), labels)

        train, *test = map(part, parts.values())
        # Old archives have names in other encodings than UTF-8, which no file of ours could hold.
        shown = tuple(os.fsencode(name).decode(errors="backslashreplace") for name in number)
        return EncodedData(train, test[0] if test else None, shown, len(held))

    def _found(self) -> dict[str, ClassFiles]:
        """Returns training, validation and test part, where they are. Raises: DataError."""
        root = Path(self.root)
        if not root.is_dir():
            raise DataError(
                f"`root` must be a folder with one folder of images a class, but there is no"
                f" {root.absolute()}. Set `root` to where the data are; relative paths start at the"
                " study file's folder."
            )
        place, parts = parts_in(root)
        _refuse_strange(place, parts)
        folders = {"train": place, **parts}
        found = {
            part: {each.name: [*filter(is_image, files_below(each))] for each in folders_in(folder)}
            for part, folder in folders.items()
        }
        for part, classes in found.items():
            _check(folders[part].absolute(), classes, found["train"])
        return found


# From here to the next private function, exported scripts have the same text.
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval"), "test"),
}
"""Parts of a data set by the names of folders and files, in lower case."""
SYSTEM_NAMES = ("@eadir", "#recycle", "$recycle.bin", "__macosx", "lost+found", "thumbs.db")
"""What systems leave in people's folders, in lower case."""


def parts_in(root: Path) -> tuple[Path, dict[str, Path]]:
    """Returns the folder that holds parts or class folders, and the parts; none for the latter."""
    folders = folders_in(root)
    named = {PARTS.get(each.name.lower()): each for each in reversed(folders) if folders_in(each)}
    order = ("train", "validation", "test")
    parts: dict[str, Path] = {part: named[part] for part in order if part in named}
    if len(folders) == 1 and [*named] == [None] and not any(map(is_image, folders[0].iterdir())):
        return parts_in(folders[0])
    if "validation" in parts and "test" not in parts:
        parts["test"] = parts.pop("validation")
    return root, parts


def folders_in(folder: Path) -> list[Path]:
    """Returns the visible folders in a folder in name order, without links to those above."""
    above = (folder.resolve(), *folder.resolve().parents)
    inside = (each for each in folder.iterdir() if is_visible(each.name) and each.is_dir())
    return sorted(each for each in inside if each.resolve() not in above)


def files_below(folder: Path) -> list[Path]:
    """Returns the files below a folder in name order, behind links too, each folder once."""
    seen = {each.resolve() for each in (folder, *folder.absolute().parents)}
    found: list[Path] = []
    waiting = [folder]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if is_visible(path.name) and not path.is_dir():
                found.append(path)
            elif is_visible(path.name) and path.resolve() not in seen:
                seen.add(path.resolve())
                waiting.append(path)
    return sorted(found)


def is_visible(name: str) -> bool:
    """Returns whether a file or folder is neither hidden nor left by a system."""
    return not name.startswith(".") and name.lower() not in SYSTEM_NAMES


def is_image(path: Path) -> bool:
    """Returns whether a file is read: by its suffix, or without one by what it holds."""
    if path.suffix or not is_visible(path.name):
        return path.suffix.lower() in SUFFIXES and is_visible(path.name) and path.is_file()
    try:
        with Image.open(path, formats=FORMATS):
            return True
    except (OSError, ValueError, Image.DecompressionBombError):
        return False


def _refuse_strange(place: Path, parts: dict[str, Path]) -> None:
    """Raises: DataError for images beside the parts, and for parts without `train`."""
    others = [each for each in folders_in(place) if parts and each not in parts.values()]
    strange = ", ".join(each.name for each in others if any(map(is_image, files_below(each))))
    if strange or (parts and "train" not in parts):
        why = f"beside {strange}, not of a part or without class folders" if strange else "alone"
        raise DataError(
            f"{place.absolute()} must hold class folders alone, or one folder of class folders a"
            f" part ({', '.join(PARTS)}), but holds {', '.join(f.name for f in parts.values())}"
            f" {why}. Rename or move some."
        )


def _check(folder: Path, classes: ClassFiles, train: ClassFiles) -> None:
    if not classes and classes is train:
        raise DataError(f"{folder} must hold one folder of images a class, but holds no folder.")
    for name, files in classes.items():
        if name not in train:
            raise DataError(
                f"The classes of {folder} must be those of the training part, but `{name}` is none"
                f" of them{did_you_mean(name, train) or '.'}"
            )
        if not files and classes is train:
            raise DataError(
                f"Every class folder must hold images ({', '.join(sorted(SUFFIXES))}), but"
                f" {folder / name} holds none. Add some, or remove the folder."
            )
    if not any(classes.values()):
        raise DataError(f"{folder} must hold images, but holds none.")


def _count(classes: ClassFiles) -> int:
    return sum(map(len, classes.values()))

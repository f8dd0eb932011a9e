"""Encoded images to boxes of pixels, boxes to batches, and the script of processes that do it."""

# It imports nothing but NumPy and Pillow, so that a worker starts in 0.2 s and takes 40 MiB, and
# does not run the user's main script, as multiprocessing would.

import fcntl
import hashlib
import math
import mmap
import os
import pickle
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

Pixels = NDArray[np.uint8]
Indices = NDArray[np.int64]
Gather = Callable[[Indices, Pixels], Pixels]
"""Puts the images at some indices (B,) into the first places of a room, (B or more, H, W, C), and
returns these."""
File = Path | bytes
Item = tuple[File, str, int, int, int]
"""An image's file or bytes, its name, the height and width to store it at, and its place."""

GREY_MODES = frozenset({"1", "L", "LA", "La"})
COLOUR_MODES = frozenset({"P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
# What is decoded, whatever a file is called. Pillow knows more, and starts Ghostscript for one.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
SUFFIXES = frozenset(s for s, kind in Image.registered_extensions().items() if kind in _FORMATS)
FORMATS = tuple(kind for kind in _FORMATS if kind in Image.OPEN)
MOST_PIXELS = 100_000_000
"""Of an image as it is decoded, which takes up to 8 bytes a pixel; see `_check_size`."""
MOST_ASPECT = 1.5
"""Longer side of a stored image as a multiple of the shorter one."""
OLD_MOST_PIXELS = 89_478_485
"""From here on `square` decodes at a smaller size."""
WAIT_S = 300
"""Longest time that the images of one message to a worker may take."""
QUALITY = 95
"""Of the JPEG files that are written."""
_TURNS = dict(zip(range(2, 9), map(Image.Transpose, (0, 3, 1, 5, 4, 6, 2)), strict=True))
"""What brings an image upright, by its EXIF orientation."""
_SWAPS = frozenset(_TURNS[orientation] for orientation in range(5, 9))
_JPEG = ("JPEG", "MPO")
_PNG_EXIF = (b"eXIf", b"XML:com.adobe.xmp", b"Raw profile type")


class BadImage(ValueError):
    """An image cannot be used: what goes on after its name."""


class Damaged(Exception):
    """A stored image cannot be decoded; the message says which, and why."""


def decode_into(encoded: bytes, box: Pixels) -> tuple[int, int]:
    """Puts a stored JPEG image into the upper left corner of `box` (H, W, C), and 0 in the rest.

    Returns its height and width [pixels].
    """
    with Image.open(BytesIO(encoded), formats=("JPEG",)) as image:
        pixels = np.asarray(image.convert("L" if box.shape[2] == 1 else "RGB"))
    height, width = pixels.shape[:2]
    box[:] = 0
    box[:height, :width] = pixels.reshape(height, width, -1)
    return height, width


def gather(pixels: Pixels, indices: Indices, out: Pixels) -> Pixels:
    """Puts the images `indices` (B,) into the first places of `out`, and returns these."""
    # Without `clip` NumPy would go through a buffer, in case that an index is wrong.
    return np.take(pixels, indices, axis=0, out=out[: len(indices)], mode="clip")


def decode(encoded: Pixels, ends: Indices, indices: Indices, out: Pixels) -> Pixels:
    """Does the same to files that lie one after the other in `encoded`, and where each ends.

    Raises: Damaged if one is no image that fits its box.
    """
    room = out[: len(indices)]
    for index, box in zip(indices.tolist(), room, strict=True):
        start = ends[index - 1] if index else 0
        try:
            decode_into(encoded[start : ends[index]].tobytes(), box)
        except Exception as error:
            # Pillow's readers raise almost anything on damaged files.
            raise Damaged(f"image number {index}: {error}") from error
    return room


def stored_size(height: int, width: int, store_size: int | None) -> tuple[int, int]:
    """Returns height and width at which an image is stored [pixels]; None: its own.

    Its shorter side is at most `store_size`, and the longer one `MOST_ASPECT` times as long.
    """
    if store_size is None:
        return height, width
    tall, wide = middle(height, width)
    scale = min(1.0, store_size / min(tall, wide))
    return round(tall * scale), round(wide * scale)


def middle(height: int, width: int) -> tuple[int, int]:
    """Returns height and width of the part of an image that is stored, before it is scaled."""
    most = int(MOST_ASPECT * min(height, width))
    return min(height, most), min(width, most)


@contextmanager
def opened(file: File) -> Iterator[Image.Image]:
    """Yields an image whose pixels are not read yet. Raises: BadImage if they must not be."""
    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        image = Image.open(BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS)
    finally:
        Image.MAX_IMAGE_PIXELS = limit
    with image:
        if image.mode not in GREY_MODES | COLOUR_MODES:
            raise BadImage(
                f"must have 8 bits a channel, but its mode is {image.mode}. Convert it first:"
                " scaling 16 bits or floats here would be a guess."
            )
        yield image


def _check_size(image: Image.Image, times: int = 1) -> None:
    if image.width * image.height > times * MOST_PIXELS:
        raise BadImage(
            f"must have at most {MOST_PIXELS / 1e6:.0f} million pixels, or four times as many as a"
            " baseline JPEG file that is stored at half its size or smaller, but has"
            f" {image.width}x{image.height}. Scale it down first, or leave it out."
        )


def looked_at(file: File) -> tuple[int, int, bool, bool, int]:
    """Returns an image's height and width as viewers show it, from its header alone.

    And whether it has colour, whether only the first of its frames is read, and a number that is
    another one when the file has changed.
    """
    what = file if isinstance(file, bytes) else b""
    if isinstance(file, Path):
        status = os.stat(file)
        what = f"{file}/{status.st_size}/{status.st_mtime_ns}".encode(errors="surrogateescape")
    with opened(file) as image:
        # Of progressive JPEG all coefficients would be in memory, at whichever size it is decoded.
        is_cheap = image.format in _JPEG and "progressive" not in image.info
        _check_size(image, 4 if is_cheap else 1)
        # Pillow would decode a whole PNG file to see whether EXIF follows the pixels. Of TIFF it
        # turns the size itself.
        is_png = image.format == "PNG"
        may_turn = any(mark in _content(file) for mark in _PNG_EXIF) if is_png else True
        turn = _turn(image) if may_turn and image.format != "TIFF" else None
        width, height = image.size[::-1] if turn in _SWAPS else image.size
        # Photographs of some telephones have a second, smaller image.
        is_animated = image.format != "MPO" and getattr(image, "is_animated", False)
        return height, width, image.mode in COLOUR_MODES, is_animated, _digest(what)


def square(image: Image.Image, side: int) -> Pixels:
    """Returns the central square (S, S, 3), scaled to `side`: what older versions stored."""
    if image.width * image.height > OLD_MOST_PIXELS:
        # JPEG can be decoded at a half to an eighth of its size, in as much less memory.
        image.draft(None, (2 * side, 2 * side))
    fitted = ImageOps.fit(upright(image), (side, side), Image.Resampling.BILINEAR)
    return np.asarray(fitted)


def upright(image: Image.Image) -> Image.Image:
    """Returns an image in colour as viewers show it, without transparency. Raises: BadImage."""
    _check_size(image)
    image.load()
    # As torchvision's ImageFolder does; where transparency is not in the pixels, Pillow warns
    # about a direct way to RGB.
    is_transparent = image.mode != "RGB" and "transparency" in image.info
    colour = image.convert("RGBA") if is_transparent else image
    # Converted even to itself, it would be copied.
    colour = colour if colour.mode == "RGB" else colour.convert("RGB")
    turn = _turn(image)
    return colour if turn is None else colour.transpose(turn)


def scaled(image: Image.Image, height: int, width: int) -> Pixels:
    """Returns the image's centre in the proportions of `height` and `width`, scaled to them.

    (H, W, 3), bilinear with antialiasing.
    """
    left, top, right, bottom = _centre(image.height, image.width)
    scale = max(height, width) / max(right - left, bottom - top)
    # JPEG can be decoded at a half to an eighth of its size, here never under what is needed.
    image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))
    shown = upright(image)
    cut = _centre(shown.height, shown.width)
    return np.asarray(shown.resize((width, height), Image.Resampling.BILINEAR, box=cut))


def read(file: File, name: str, *stored: int | None) -> Pixels | str:
    """Returns an image (H, W, C) as a data set stores it, or what is wrong with it.

    `stored`: its `image_size` and `store_size`, whether it stores JPEG, and the channels.
    """
    found: Pixels | str = _tried(_read, file, name, *stored)
    return found


def work(how: dict[str, Any] | None, items: Sequence[Item]) -> list[Any]:
    """Looks at images, or, by what `how` says, stores them; returns what was found, or errors.

    `how`: `box` (H, W, C), `image_size`, and `path`, the file in which each image's box is put at
    its place; without it JPEG files are returned. Each answer is that of `looked_at`, or (digest,
    JPEG), or text that says what is wrong with the image. Raises: OSError if `path` is not written.
    """
    if how is None:
        return [_tried(looked_at, *item[:2]) for item in items]
    answers: list[Any] = []
    with open(how["path"] or os.devnull, "r+b") as file:
        for item in items:
            found = _tried(_stored, *item[:2], item[2:4], how)
            if how["path"] and not isinstance(found, str):
                file.seek(item[4])
                file.write(found[1])
                found = found[0], b""
            answers.append(found)
    return answers


def _stored(file: File, size: tuple[int, int], how: dict[str, Any]) -> tuple[int, Any]:
    side, (*most, channels) = how["image_size"], how["box"]
    with opened(file) as image:
        is_plain = image.format in _JPEG and image.mode in ("RGB", "L") and _turn(image) is None
        # JPEG of twice the size and more is decoded at half of it.
        if min(image.size) < 2 * min(size):
            _check_size(image)
        if not how["path"] and is_plain and image.size == size[::-1]:
            image.load()
            content = _content(file)
            return _digest(content), content
        pixels = scaled(image, *size) if side is None else square(image, side)
    if channels == 1:
        # A grey image keeps its values; one in colour gets its luminance, as in `decode_into`.
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
    if not how["path"]:
        buffer = BytesIO()
        kept = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        kept.save(buffer, "JPEG", quality=QUALITY)
        return _digest(buffer.getvalue()), buffer.getvalue()
    box = np.zeros((*most, channels), np.uint8)
    box[: size[0], : size[1]] = pixels
    return _digest(pixels.tobytes()), box.data


def _read(file: File, side: int | None, most: int | None, is_jpeg: bool, channels: int) -> Pixels:
    size = stored_size(*looked_at(file)[:2], most) if side is None else (side, side)
    box = (*size, channels)
    how = {"image_size": side, "box": box, "path": None if is_jpeg else os.devnull}
    _, content = _stored(file, size, how)
    if not is_jpeg:
        return np.frombuffer(content, np.uint8).reshape(box)
    pixels = np.empty(box, np.uint8)
    decode_into(content, pixels)
    return pixels


def _content(file: File) -> bytes:
    return file if isinstance(file, bytes) else file.read_bytes()


def _centre(height: int, width: int) -> tuple[int, int, int, int]:
    tall, wide = middle(height, width)
    left, top = (width - wide) // 2, (height - tall) // 2
    return left, top, left + wide, top + tall


def _digest(content: Any) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _tried(do: Callable[..., Any], file: File, name: str, *given: Any) -> Any:
    try:
        return do(file, *given)
    except BadImage as error:
        return f"{name} {error}"
    except FileNotFoundError:
        return f"{name} must stay where it is while it is read, but it is not there any more."
    except Exception as error:
        # Pillow's readers raise almost anything on damaged files.
        return f"{name} must be an image, but it cannot be decoded: {error}"


def _turn(image: Image.Image) -> Image.Transpose | None:
    # Viewers pass over damaged EXIF.
    with suppress(SyntaxError, TypeError, ValueError, struct.error), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return None


def map_array(file: int, shape: Sequence[int], dtype: str, offset: int = 0) -> NDArray[Any]:
    """Returns an open file's content from `offset` on as an array, writable if the file is."""
    is_writable = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    mapped = mmap.mmap(file, 0, access=mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ)
    return np.frombuffer(mapped, dtype, math.prod(shape), offset).reshape(shape)


class Feeder:
    """Fills batches in memory that another process shares."""

    def share(self, arrays: Mapping[str, Sequence[Any]]) -> None:
        """Maps `source`, where it is encoded with its `ends`, `indices` (S, B) and `slots`."""
        mapped = {name: map_array(*array) for name, array in arrays.items()}
        self._indices, self._slots = mapped.pop("indices"), mapped.pop("slots")
        self._gather: Gather = partial(decode if "ends" in mapped else gather, *mapped.values())

    def fill(self, slot: int, size: int) -> str | None:
        """Puts the images `indices[slot]` in a slot; returns which is damaged, and why, or None."""
        try:
            self._gather(self._indices[slot, :size], self._slots[slot])
        except Damaged as error:
            return str(error)
        return None


def main(arguments: list[str]) -> None:
    """Answers what comes through a pipe until its other end closes."""
    # Ctrl-C is the parent's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection, feeder = Connection(int(arguments[0])), Feeder()
    calls: dict[str, Callable[..., Any]] = {
        "work": work,
        "share": feeder.share,
        "fill": feeder.fill,
    }
    # The other end closes when its process dies.
    with suppress(EOFError, ConnectionError):
        while True:
            name, *given = connection.recv()
            # An image that never ends ends the process, even without its parent; loaders have a
            # limit of their own.
            signal.alarm(0 if name == "fill" else WAIT_S)
            answer: Any
            try:
                answer = calls[name](*given)
            except OSError as error:
                if name != "work":
                    raise
                answer = error
            connection.send_bytes(pickle.dumps(answer))
            signal.alarm(0)


if __name__ == "__main__":
    main(sys.argv[1:])

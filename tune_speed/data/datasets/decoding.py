"""Encoded image files to uint8 arrays, with errors that say which image is at fault."""

import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from tune_speed.core.errors import DataError
from tune_speed.data.base import Encoded, OnProgress

GREY_MODES = frozenset({"1", "L", "LA", "La"})
COLOUR_MODES = frozenset({"P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
PROGRESS_EVERY = 1000
# What is decoded, whatever a file is called. Pillow knows more, and starts Ghostscript for one.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
SUFFIXES = frozenset(s for s, kind in Image.registered_extensions().items() if kind in _FORMATS)
FORMATS = tuple(kind for kind in _FORMATS if kind in Image.OPEN)
MOST_PIXELS = 1 << 28
"""Of an image, before it is scaled: photographs of 200 megapixels have fewer."""
_TURNS = dict(zip(range(2, 9), map(Image.Transpose, (0, 3, 1, 5, 4, 6, 2)), strict=True))
"""What brings an image upright, by its EXIF orientation."""


class Part(NamedTuple):
    """The images of one part of a data set."""

    name: str
    images: Iterable[Encoded]
    size: int


class _Decoded(NamedTuple):
    pixels: NDArray[np.uint8]
    is_grey: bool
    """No image of the part has colour: its three channels are the same."""


def decode_parts(
    parts: Sequence[Part], *, image_size: int | None, on_progress: OnProgress
) -> list[NDArray[np.uint8]]:
    """Returns the pixels of each part, (N, H, W, C): one channel if no image at all has colour.

    With an `image_size` [pixels] the shorter side is scaled to it, bilinear with antialiasing, and
    the centre is cropped; None: all images of a part must have one size. Progress is reported every
    1,000 images and at the end.

    Raises: DataError if one cannot be decoded, has more than 8 bits a channel, or another size.
    """
    total = sum(part.size for part in parts)
    decoded: list[_Decoded] = []
    for part in parts:
        before = sum(len(earlier.pixels) for earlier in decoded)

        def report(done: int, before: int = before) -> None:
            on_progress(before + done, total)

        decoded.append(_decode_part(part, image_size, report))
    if all(part.is_grey for part in decoded):
        return [np.ascontiguousarray(part.pixels[..., :1]) for part in decoded]
    return [part.pixels for part in decoded]


def _decode_part(part: Part, image_size: int | None, report: Callable[[int], None]) -> _Decoded:
    pixels: NDArray[np.uint8] | None = None
    is_grey = True
    done = -1
    for done, encoded in enumerate(part.images):
        _check_count(done, part)
        image, image_is_grey = decode_image(encoded, image_size)
        is_grey = is_grey and image_is_grey
        if pixels is None:
            pixels = np.empty((part.size, *image.shape), dtype=np.uint8)
        if image.shape != pixels.shape[1:]:
            height, width = image.shape[:2]
            first_height, first_width = pixels.shape[1:3]
            raise DataError(
                f"All images must have one size, but {encoded.name} is {width}x{height} and the"
                f" first is {first_width}x{first_height}. Set `image_size`, for example to"
                f" {min(height, width)}."
            )
        pixels[done] = image
        if done % PROGRESS_EVERY == 0:
            report(done)
    if pixels is None:
        raise DataError(f"{part.name} must hold images, but holds none.")
    _check_count(done, part, is_last=True)
    report(part.size)
    return _Decoded(pixels, is_grey)


def _check_count(position: int, part: Part, *, is_last: bool = False) -> None:
    # A damaged file may have more or fewer images than labels.
    if position >= part.size or (is_last and position != part.size - 1):
        found = f"only {position + 1} images" if is_last else "more images"
        raise DataError(f"{part.name} must hold {part.size} images, one a label, but has {found}.")


def decode_image(encoded: Encoded, image_size: int | None) -> tuple[NDArray[np.uint8], bool]:
    """Returns an image (H, W, 3) as viewers show it, and whether it is grey. Raises: DataError."""
    try:
        with _opened(encoded, image_size) as image:
            if image.mode not in GREY_MODES | COLOUR_MODES:
                raise DataError(
                    f"{encoded.name} must have 8 bits a channel, but its mode is {image.mode}."
                    " Convert it first: scaling 16 bits or floats here would be a guess."
                )
            # Transparency is dropped, as torchvision's ImageFolder does; where it is not in the
            # pixels, Pillow warns about a direct way to RGB.
            is_transparent = image.mode != "RGB" and "transparency" in image.info
            colour = (image.convert("RGBA") if is_transparent else image).convert("RGB")
            turn = _turn(image)
            upright = colour if turn is None else colour.transpose(turn)
            if image_size is not None:
                upright = ImageOps.fit(upright, (image_size, image_size), Image.Resampling.BILINEAR)
            return np.asarray(upright), image.mode in GREY_MODES
    except DataError:
        raise
    except Exception as error:
        # Pillow's readers raise almost anything on damaged files.
        raise DataError(
            f"{encoded.name} must be an image, but it cannot be decoded: {error}"
        ) from error


@contextmanager
def _opened(encoded: Encoded, image_size: int | None) -> Iterator[Image.Image]:
    source = BytesIO(encoded.file) if isinstance(encoded.file, bytes) else encoded.file
    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        image = Image.open(source, formats=FORMATS)
    finally:
        Image.MAX_IMAGE_PIXELS = limit
    with image:
        pixels = image.width * image.height
        if pixels > MOST_PIXELS:
            raise DataError(
                f"{encoded.name} must have at most {MOST_PIXELS / 1e6:.0f} million pixels, but has"
                f" {pixels / 1e6:.0f} million. Scale it down first, or leave it out."
            )
        if image_size is not None and limit is not None and pixels > limit:
            # JPEG can be decoded at a half to an eighth of its size, in as much less memory.
            image.draft(None, (2 * image_size, 2 * image_size))
        yield image


def _turn(image: Image.Image) -> Image.Transpose | None:
    try:
        with warnings.catch_warnings(action="ignore"):
            return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except (SyntaxError, TypeError, ValueError, struct.error):
        # Of damaged EXIF, which viewers pass over.
        return None

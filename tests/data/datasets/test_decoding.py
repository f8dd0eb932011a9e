from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from helpers.data.files import encode
from PIL import Image

from tune_speed.core.errors import DataError
from tune_speed.data.datasets.decoding import Encoded, Part, decode_parts

Pixels = Callable[..., np.ndarray]


def decode(*files: bytes | Path, image_size: int | None = None) -> np.ndarray:
    images = [Encoded(file, f"image {i}") for i, file in enumerate(files)]
    parts = [Part("part", images, len(files))]
    return decode_parts(parts, image_size=image_size, on_progress=lambda *_: None)[0]


def test_colour_images_come_back_as_they_were(random_pixels: Pixels) -> None:
    pixels = random_pixels(5, 4, 6, 3)
    assert np.array_equal(decode(*map(encode, pixels)), pixels)


def test_grey_set_keeps_one_channel(random_pixels: Pixels) -> None:
    pixels = random_pixels(5, 4, 6)
    assert np.array_equal(decode(*map(encode, pixels)), pixels[..., None])


def test_grey_image_among_colours_gets_three_equal_channels(random_pixels: Pixels) -> None:
    grey, colour = random_pixels(4, 6), random_pixels(4, 6, 3)
    decoded = decode(encode(grey), encode(colour))
    assert np.array_equal(decoded[0], np.stack([grey] * 3, axis=-1))
    assert np.array_equal(decoded[1], colour)


def test_parts_agree_on_the_number_of_channels(random_pixels: Pixels) -> None:
    parts = [
        Part("part", [Encoded(encode(pixels), "x")], 1)
        for pixels in (random_pixels(4, 4), random_pixels(4, 4, 3))
    ]
    shapes = [p.shape for p in decode_parts(parts, image_size=None, on_progress=lambda *_: None)]
    assert shapes == [(1, 4, 4, 3), (1, 4, 4, 3)]


def test_alpha_is_dropped_and_palettes_are_looked_up(random_pixels: Pixels) -> None:
    colour = random_pixels(4, 6, 3)
    alpha = np.dstack([colour, random_pixels(4, 6)])
    palette = Image.fromarray(colour).quantize(8)
    transparent = palette.copy()
    transparent.info["transparency"] = bytes([0, 128, 255, 255, 255, 255, 255, 255])
    decoded = decode(encode(alpha), *(encode_image(image) for image in (palette, transparent)))
    assert np.array_equal(decoded[0], colour)
    looked_up = np.array(palette.getpalette()).reshape(-1, 3)[np.asarray(palette)]
    assert np.array_equal(decoded[1], looked_up)
    assert np.array_equal(decoded[2], looked_up)


def encode_image(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "png")
    return buffer.getvalue()


def test_differing_sizes_ask_for_image_size(random_pixels: Pixels) -> None:
    files = [encode(random_pixels(8, 9, 3)), encode(random_pixels(5, 7, 3))]
    with pytest.raises(DataError, match=r"image 1 is 7x5 and the first is 9x8\. Set `image_size`"):
        decode(*files)
    assert decode(*files, image_size=5).shape == (2, 5, 5, 3)


def test_scaling_keeps_the_middle_and_the_aspect(random_pixels: Pixels) -> None:
    stripes = np.repeat(np.array([0, 90, 180, 255], dtype=np.uint8), 8)
    wide = np.broadcast_to(stripes[None, :, None], (16, 32, 3))  # 4 stripes of 8 pixels
    assert np.array_equal(decode(encode(wide.copy()), image_size=16)[0], wide[:, 8:24])
    halved = decode(encode(wide.copy()), image_size=8)[0, :, :, 0]
    assert (halved == halved[0]).all()
    assert halved[0, 1] == 90 and halved[0, -2] == 180  # the outermost blend with what is cut off


@pytest.mark.parametrize("damage", [b"", b"no image", None])
def test_damaged_image_is_named(random_pixels: Pixels, damage: bytes | None) -> None:
    whole = encode(random_pixels(16, 16, 3))
    damaged = whole[: len(whole) // 2] if damage is None else damage
    with pytest.raises(DataError, match="image 1 must be an image, but it cannot be decoded"):
        decode(whole, damaged)


def test_sixteen_bits_are_refused_rather_than_clipped() -> None:
    deep = np.full((4, 4), 40_000, dtype=np.uint16)
    with pytest.raises(DataError, match=r"image 0 must have 8 bits a channel, .* I;16"):
        decode(encode(deep))


TURNED = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
"""By EXIF's orientation, how a camera stored what it saw: numbers of Pillow's `Transpose`."""


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_images_are_upright_whichever_way_they_are_stored(kind: str) -> None:
    seen = np.zeros((24, 32, 3), np.uint8)
    seen[:, :16], seen[:8, :, 1] = 200, 90
    for orientation, turn in TURNED.items():
        exif, buffer, image = Image.Exif(), BytesIO(), Image.fromarray(seen)
        exif[0x112] = orientation
        stored = image if turn is None else image.transpose(Image.Transpose(turn))
        stored.save(buffer, kind, quality=95, exif=exif)
        found = decode(buffer.getvalue())[0]
        assert found.shape == seen.shape and np.abs(found.astype(int) - seen).mean() < 8


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0MM\0*\0", b"Exif\0\0junk", b"Exif\0\0II*\0\x08\0\0\0\xff"]
)
def test_damaged_exif_is_passed_over(exif: bytes, random_pixels: Pixels) -> None:
    pixels, buffer = random_pixels(8, 6, 3), BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", exif=exif)
    assert np.array_equal(decode(buffer.getvalue())[0], pixels)


def test_a_photo_of_200_megapixels_is_scaled_down() -> None:
    buffer = BytesIO()
    Image.fromarray(np.full((14_200, 14_200), 70, np.uint8)).save(buffer, "JPEG", quality=50)
    assert (abs(decode(buffer.getvalue(), image_size=32).astype(int) - 70) <= 1).all()


def test_unusual_images_are_what_they_show(random_pixels: Pixels) -> None:
    first, second = (Image.new("RGB", (4, 4), colour) for colour in ("red", "blue"))
    animated, print_ = BytesIO(), BytesIO()
    first.save(animated, "GIF", save_all=True, append_images=[second])
    first.convert("CMYK").save(print_, "TIFF")
    for file in (animated, print_):
        assert (decode(file.getvalue())[0] == (255, 0, 0)).all()
    assert decode(encode(random_pixels(1, 1, 3)), image_size=8).shape == (1, 8, 8, 3)


def test_progress_counts_over_all_parts(random_pixels: Pixels) -> None:
    seen: list[Sequence[int]] = []
    parts = [
        Part("part", [Encoded(encode(p), "x") for p in random_pixels(n, 2, 2, 3)], n)
        for n in (3, 2)
    ]
    decode_parts(parts, image_size=None, on_progress=lambda *progress: seen.append(progress))
    assert seen[-1] == (5, 5)
    assert seen == sorted(seen)

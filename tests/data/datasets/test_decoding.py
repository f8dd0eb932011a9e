import os
import signal
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from helpers.data.files import encode
from PIL import Image, ImageOps
from torchvision.transforms.v2.functional import center_crop, pil_to_tensor, resize

from tune_speed.core.errors import DataError
from tune_speed.data import boxes
from tune_speed.data.base import Encoded, EncodedData, EncodedPart, EncodedRows, Images
from tune_speed.data.datasets import decoding
from tune_speed.data.datasets.decoding import ImageFiles, Stored, decode_images
from tune_speed.data.workers import Pool

Pixels = Callable[..., np.ndarray]


def listed(*files: bytes | Path) -> EncodedPart:
    images = [Encoded(file, f"image {i}") for i, file in enumerate(files)]
    return EncodedPart("part", lambda: images, np.arange(len(files)))


def store(
    folder: Path,
    *parts: EncodedPart,
    image_size: int | None = None,
    store_size: int | None = None,
    kind: str = "auto",
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[dict[str, Images], Stored]:
    train, *test = parts
    data = EncodedData(train, test[0] if test else None, ())
    storage = ImageFiles(image_size=image_size, store_size=store_size, store=kind)
    stored = decode_images(data, storage, folder, on_progress)
    files = {path.stem: np.load(path) for path in folder.glob("*.npy") if "rows" not in path.stem}
    found = {part: Images.of({**files, **stored.arrays}, part) for part in ("train", "test")}
    return {part: images for part, images in found.items() if images is not None}, stored


def decode(*files: bytes | Path, image_size: int | None = None) -> np.ndarray:
    with TemporaryDirectory() as folder:
        return np.asarray(store(Path(folder), listed(*files), image_size=image_size)[0]["train"][0])


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


def test_parts_agree_on_the_number_of_channels(tmp_path: Path, random_pixels: Pixels) -> None:
    parts = (listed(encode(random_pixels(4, 4))), listed(encode(random_pixels(4, 4, 3))))
    found, _ = store(tmp_path, *parts)
    assert [found[part].pixels.shape for part in ("train", "test")] == [(1, 4, 4, 3)] * 2


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
    with pytest.raises(DataError, match=r"image 1 is 7x5 and the first is 9x8\. Set `store_size`"):
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


def test_progress_counts_over_all_parts(tmp_path: Path, random_pixels: Pixels) -> None:
    seen: list[tuple[int, int]] = []
    parts = [listed(*map(encode, random_pixels(n, 2, 2, 3))) for n in (3, 2)]
    store(tmp_path, *parts, on_progress=lambda *progress: seen.append(progress))
    assert seen[-1] == (5, 5) and seen.count((5, 5)) == 1
    assert seen == sorted(seen)


def photo(height: int, width: int, **options: Any) -> bytes:
    """Returns a JPEG file of a smooth image."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(y / 9) * np.cos(x / 11), np.cos(y / 17), np.sin((x + y) / 23)]
    pixels = (127 + 120 * np.dstack(waves)).astype(np.uint8)
    image, buffer = Image.fromarray(pixels), BytesIO()
    image.convert(options.pop("mode", "RGB")).save(buffer, "JPEG", quality=92, **options)
    return buffer.getvalue()


def test_image_size_stores_the_pixels_of_earlier_versions(random_pixels: Pixels) -> None:
    file = photo(60, 90)
    image = Image.open(BytesIO(file))
    expected = ImageOps.fit(image, (24, 24), Image.Resampling.BILINEAR)
    assert np.array_equal(decode(file, image_size=24)[0], np.asarray(expected))


@pytest.mark.parametrize(
    ("own", "stored"),
    [
        ((400, 533), (96, 128)),
        ((80, 100), (80, 100)),
        ((100, 400), (96, 144)),
        ((90, 20), (30, 20)),
        ((1, 1), (1, 1)),
        ((1, 900), (1, 1)),
    ],
)
def test_the_short_side_is_at_most_store_size_and_the_long_one_half_as_long_again(
    own, stored
) -> None:
    assert boxes.stored_size(*own, 96) == stored


@pytest.mark.parametrize("size", [(300, 420), (150, 421), (97, 131)])
def test_stored_pixels_are_those_of_torchvision(size: tuple[int, int]) -> None:
    file = photo(*size)
    height, width = boxes.stored_size(*size, 64)
    whole = pil_to_tensor(Image.open(BytesIO(file)))
    middle = center_crop(whole, [size[0], min(size[1], 3 * size[0] // 2)])
    expected = resize(middle, [height, width], antialias=True).permute(1, 2, 0).numpy()
    found = boxes.scaled(Image.open(BytesIO(file)), height, width)
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).mean() < 2


@pytest.mark.parametrize("kind", ["pixels", "jpeg"])
def test_images_of_several_sizes_lie_in_the_corners_of_their_boxes(kind: str, tmp_path) -> None:
    turned = Image.Exif()
    turned[0x112] = 6
    files = [photo(30, 40), photo(90, 60), photo(16, 80), photo(30, 40, exif=turned)]
    files.append(photo(30, 50, mode="CMYK"))
    found, stored = store(tmp_path, listed(*files), store_size=32, kind=kind)
    images = found["train"]
    sizes = [[30, 40], [48, 32], [16, 24], [40, 30], [30, 45]]
    assert images.sizes is not None and images.sizes.tolist() == sizes
    assert images.pixels.shape == (5, 48, 45, 3)
    for pixels, (height, width) in zip(images.pixels[:], sizes, strict=True):
        assert not pixels[height:].any() and not pixels[:, width:].any()
        assert pixels[:height, :width].std() > 20
    assert "of 2 of 5 images, longer than 3:2" in stored.notes[0]
    whole = np.asarray(Image.open(BytesIO(files[0])))
    assert np.array_equal(images.pixels[:1][0, :30, :40], whole)


def test_jpeg_files_that_are_small_enough_are_kept_byte_by_byte(tmp_path: Path) -> None:
    files = [photo(30, 40), photo(90, 60), photo(20, 20)]
    pixels = store(tmp_path, listed(*files), store_size=32, kind="jpeg")[0]["train"].pixels
    assert isinstance(pixels, EncodedRows)
    stored = np.split(pixels.encoded, pixels.ends[:-1])
    assert [stored[0].tobytes(), stored[2].tobytes()] == [files[0], files[2]]
    box, swapped = np.full(pixels.box, 9, np.uint8), pixels.take(np.array([2, 0]))
    assert boxes.decode_into(files[2], box) == (20, 20)
    assert np.array_equal(swapped[:][0], box) and np.array_equal(swapped[:][1], pixels[:1][0])


def test_auto_stores_jpeg_where_pixels_would_be_too_many(tmp_path, monkeypatch) -> None:
    part = listed(photo(16, 16), photo(16, 16))
    for most, kind in ((2 * 16 * 16 * 3, np.ndarray), (2 * 16 * 16 * 3 - 1, EncodedRows)):
        monkeypatch.setattr(decoding, "MOST_PIXEL_BYTES", most)
        found, _ = store(tmp_path, part, store_size=16)
        assert isinstance(found["train"].pixels, kind)


@pytest.mark.parametrize("kind", ["pixels", "jpeg"])
def test_all_damaged_images_are_named_and_the_others_kept(tmp_path, monkeypatch, kind) -> None:
    files: list[Any] = [photo(16, 16 + i) for i in range(8)]
    bad = [
        b"text",
        tmp_path / "gone.jpg",
        photo(16, 16)[:-60],
        encode_image(Image.new("I;16", (4, 4))),
    ]
    mixed = [*files[:4], *bad, *files[4:]]
    with pytest.raises(DataError, match="4 of 12 images") as caught:
        store(tmp_path, listed(*mixed), store_size=32, kind=kind)
    assert [f"image {i} must" in str(caught.value) for i in range(12)] == [False] * 4 + [
        True
    ] * 4 + [False] * 4
    decoded: list[int] = []
    work = boxes.work
    monkeypatch.setattr(
        boxes,
        "work",
        lambda how, items: decoded.extend([1] * len(items) * bool(how)) or work(how, items),
    )
    again, _ = store(tmp_path, listed(*files, photo(15, 16)), store_size=32, kind=kind)
    assert len(decoded) == 1  # of nine
    with TemporaryDirectory() as folder:
        fresh, _ = store(Path(folder), listed(*files, photo(15, 16)), store_size=32, kind=kind)
    assert np.array_equal(again["train"].pixels[:], fresh["train"].pixels[:])


def test_too_large_images_are_refused_before_they_are_decoded() -> None:
    header = encode_image(Image.new("1", (20_000, 20_000)))
    with pytest.raises(DataError, match=r"image 0 must have at most 100 million pixels"):
        decode(header, image_size=8)


@pytest.mark.parametrize("kind", ["pixels", "jpeg"])
@pytest.mark.parametrize(
    ("options", "store_size", "is_read"),
    [({}, 50, True), ({}, 51, False), ({}, None, False), ({"progressive": True}, 50, False)],
)
def test_of_jpeg_what_counts_is_how_much_is_decoded(
    tmp_path: Path, monkeypatch, options, store_size, is_read, kind
) -> None:
    monkeypatch.setattr(boxes, "MOST_PIXELS", 100 * 100 - 1)
    part = listed(photo(100, 100, **options))
    if is_read:
        found, _ = store(tmp_path, part, store_size=store_size, kind=kind)
        assert found["train"].pixels.shape == (1, 50, 50, 3)
        return
    with pytest.raises(DataError, match="image 0 must have at most"):
        store(tmp_path, part, store_size=store_size, kind=kind)


def test_of_an_animated_image_the_first_frame_is_read_and_it_is_said(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (4, 4), colour) for colour in ("red", "blue"))
    animated = BytesIO()
    first.save(animated, "GIF", save_all=True, append_images=[second])
    found, stored = store(tmp_path, listed(animated.getvalue()))
    assert (found["train"].pixels[0] == (255, 0, 0)).all()
    assert "first frame" in stored.notes[0]


def test_a_worker_that_dies_is_replaced_and_one_that_always_dies_is_an_error() -> None:
    items = [(row, (photo(16, 16), f"image {row}", 0, 0, 0)) for row in range(200)]
    with Pool(2) as pool:
        answers = pool.answers(None, iter(items))
        next(answers)
        os.kill(pool.workers[1].process.pid, signal.SIGKILL)
        assert sum(len(chunk) for chunk, _ in answers) == 200 - 64
        pool.workers[0].process.kill()
        broken = dict.fromkeys(["box"], None)  # a worker ends with a traceback
        with pytest.raises(DataError, match="image 0 to image 63"):
            list(pool.answers(broken, iter(items)))


def test_workers_give_the_pixels_of_one_process(tmp_path: Path, monkeypatch) -> None:
    part = listed(*(photo(20 + i % 7, 30) for i in range(150)))
    (tmp_path / "alone").mkdir()
    alone, _ = store(tmp_path / "alone", part, store_size=16)
    monkeypatch.setattr(decoding, "SERIAL_IMAGES", 0)
    (tmp_path / "pool").mkdir()
    together, _ = store(tmp_path / "pool", part, store_size=16)
    assert np.array_equal(alone["train"].pixels, together["train"].pixels)

"""Writes `flowers/`, a folder of images a class, drawn offline: `python make_images.py`.

Discs with three, five or eight petals, of any colour and angle, on noise. Put your own images in
the place of these: one folder a class.
"""

import math
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

PETALS = {"lily": 3, "rose": 5, "daisy": 8}
SIZE = 24
"""Height and width [pixels]."""


def flower(num_petals: int, generator: np.random.Generator) -> Image.Image:
    """Returns a picture of a flower."""
    noise = generator.integers(0, 90, (SIZE, SIZE, 3), dtype=np.uint8)
    picture = Image.fromarray(noise)
    draw = ImageDraw.Draw(picture)
    red, green, blue = (int(value) for value in generator.integers(120, 256, 3))
    turn = generator.uniform(0, 2 * math.pi)
    for petal in range(num_petals):
        angle = turn + 2 * math.pi * petal / num_petals
        x, y = (SIZE / 2 + 7 * turned for turned in (math.cos(angle), math.sin(angle)))
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=(red, green, blue))
    return picture


def main(folder: Path, *, images_per_class: int = 120) -> None:
    """Writes `folder/<class>/<number>.png`."""
    generator = np.random.default_rng(0)
    for name, num_petals in PETALS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(images_per_class):
            flower(num_petals, generator).save(folder / name / f"{number:03}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "flowers"))

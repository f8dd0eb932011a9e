"""Every technique, model, metric and question of the source documents, and where it is to be had.

The items are in `inventory.csv`, several places of one separated by `; `. Places are read as
follows; a test looks each of them up.

| form                               | place                                                     |
|------------------------------------|-----------------------------------------------------------|
| `models.resnet50`                  | an entry of a table: models, optim, schedules, datasets,  |
|                                    | loaders, orders, speedups, metrics                        |
| `loaders.dataloader.workers`       | a field of an entry                                       |
| `recipe.precision`                 | a field of a recipe; also of `split` and `search`         |
| `search_spaces/seed_resnet50.yaml` | a file of the repository                                  |
| `tests/core/test_errors.py::test_…` | a test                                                   |
| `tune-speed train --against`       | a command                                                 |
"""

import csv
from importlib.resources import files
from typing import NamedTuple

SOURCES = {
    "S0": "Nokhwal et al., Accelerating Neural Network Training: A Brief Review, arXiv 2312.10024",
    "S1": "Nicka, Performance Improvements of Deep Learning Networks using PyTorch, Bristol",
    "S2": "a review of S0, with open questions and next checks",
    "S3": "Solomatov and Stepanov, Speeding up ResNet training",
    "S4": "a blog post, Training Time Speed Ups",
}
"""The source documents by their short names."""


class Item(NamedTuple):
    """One numbered thing of the inventory."""

    name: str
    where: tuple[str, ...] = ()
    """Places; none where the thing is not there: then `about` says why."""
    claim: str = ""
    """What the sources say it brings, with what is known to be wrong in that."""
    note: str = ""
    """What differs here; follows the description that the first place has in the code."""
    about: str = ""
    """One sentence in place of that description."""


INVENTORY: dict[int, Item] = {
    int(row["number"]): Item(
        row["name"],
        tuple(filter(None, row["where"].split("; "))),
        *(row[name] for name in ("claim", "note", "about")),
    )
    for row in csv.DictReader(
        (files(__package__) / "inventory.csv").read_text("utf-8").splitlines()
    )
}
"""By the number in the inventory, 1 to 121."""

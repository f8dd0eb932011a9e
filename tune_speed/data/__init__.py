"""Data sets, splits, and the loaders that feed a training.

A data set of `DATASETS` is decoded once into a memory-mapped cache (`cache.prepare`), cut into
training, validation and test part (`split.make_splits`), and a loader of `LOADERS` turns the
training part into batches, in an order of `ORDERS`. Importing this package imports no torch.
"""

from tune_speed.data.base import DatasetConfig
from tune_speed.data.datasets.arrays import Arrays
from tune_speed.data.datasets.builtin import Cifar10, Cifar100, Digits, TorchvisionSet
from tune_speed.data.datasets.image_folder import ImageFolder, ImageTable
from tune_speed.data.datasets.image_parquet import ImageParquet
from tune_speed.data.datasets.shards import TarShards
from tune_speed.data.loaders.configs import Automatic, LoaderConfig, Resident, Streaming
from tune_speed.data.orders import Curriculum, OrderConfig, RepeatFactor, Shuffle

DATASETS: dict[str, type[DatasetConfig]] = {
    "digits": Digits,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "image_parquet": ImageParquet,
    "image_folder": ImageFolder,
    "csv": ImageTable,
    "arrays": Arrays,
    "tar": TarShards,
    "torchvision": TorchvisionSet,
}

LOADERS: dict[str, type[LoaderConfig]] = {
    "dataloader": Streaming,
    "resident": Resident,
    "auto": Automatic,
}

ORDERS: dict[str, type[OrderConfig]] = {
    "shuffle": Shuffle,
    "repeat_factor": RepeatFactor,
    "curriculum": Curriculum,
}

__all__ = ["DATASETS", "LOADERS", "ORDERS", "DatasetConfig", "LoaderConfig", "OrderConfig"]

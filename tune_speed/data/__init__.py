"""Data sets, splits, and the loaders that feed a training.

`prepare` decodes a data set once into a memory-mapped cache, `make_splits` cuts it into training,
validation and test part, and a loader of `LOADERS` turns the training part into batches, in an
order of `ORDERS`.
Importing this package imports no torch.
"""

from tune_speed.data.base import DatasetConfig
from tune_speed.data.cifar import Cifar10, Cifar100
from tune_speed.data.curriculum import Curriculum
from tune_speed.data.digits import Digits
from tune_speed.data.image_folder import ImageFolder
from tune_speed.data.image_parquet import ImageParquet
from tune_speed.data.loaders import LoaderConfig, Resident, Streaming
from tune_speed.data.orders import OrderConfig, Shuffle
from tune_speed.data.repeat_factor import RepeatFactor

DATASETS: dict[str, type[DatasetConfig]] = {
    "digits": Digits,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "image_parquet": ImageParquet,
    "image_folder": ImageFolder,
}

LOADERS: dict[str, type[LoaderConfig]] = {
    "dataloader": Streaming,
    "resident": Resident,
}

ORDERS: dict[str, type[OrderConfig]] = {
    "shuffle": Shuffle,
    "repeat_factor": RepeatFactor,
    "curriculum": Curriculum,
}

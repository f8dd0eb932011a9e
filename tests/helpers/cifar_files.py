"""Writes small sets in torchvision's CIFAR format."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100


def write_cifar(kind: type[CIFAR10], root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Writes a small set in torchvision's format, 4 images a file; returns the training pixels."""
    rng, label_key = np.random.default_rng(5), "fine_labels" if kind is CIFAR100 else "labels"
    files: dict[str, dict[str, Any]] = {
        name: {"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8), label_key: [0, 1, 2, 1]}
        for name, _ in kind.train_list + kind.test_list
    }
    files[kind.meta["filename"]] = {kind.meta["key"]: ["cat", "dog", "owl"]}
    md5 = {}
    (root / kind.base_folder).mkdir(parents=True)
    for name, content in files.items():
        (root / kind.base_folder / name).write_bytes(pickle.dumps(content))
        md5[name] = hashlib.md5(pickle.dumps(content)).hexdigest()
    for part in ("train_list", "test_list"):
        monkeypatch.setattr(kind, part, [[name, md5[name]] for name, _ in getattr(kind, part)])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5[kind.meta["filename"]]})
    return np.concatenate([files[name]["data"] for name, _ in kind.train_list])

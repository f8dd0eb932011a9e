"""Faces of the rooms: every public name is there, and importing a face costs nothing."""

from importlib import import_module
from pathlib import Path

import pytest
from helpers.imports import imported

import tune_speed

PACKAGE = Path(tune_speed.__file__).parent
ROOMS = sorted(
    ".".join(("tune_speed", *path.parent.relative_to(PACKAGE).parts))
    for path in PACKAGE.rglob("__init__.py")
)


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_of_a_face_is_there(room: str) -> None:
    face = import_module(room)
    assert face.__doc__, "a face says what its room is for"
    assert [name for name in getattr(face, "__all__", ()) if not hasattr(face, name)] == []
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        face.no_such_name  # noqa: B018


def test_faces_import_neither_torch_nor_ray_nor_mlflow() -> None:
    # Contracts of networks run torch.
    code = f"import {', '.join({*ROOMS} - {'tune_speed.testing'})}"
    assert imported(code, "torch", "ray", "mlflow", "optuna") == set()

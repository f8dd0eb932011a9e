"""A training function, pickled by cloudpickle for the processes of its driver's search alone.

No file, and no message of anybody else, is ever unpickled. A module of no installed distribution
is pickled by value, as its file is not on other nodes.
"""

import ast
import base64
import functools
import hashlib
import inspect
import io
import pickle
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from tune_speed.core.errors import ConfigError

# A function that brings more than this is refused: it goes to every process.
MOST_MIB = 16


class Loop(NamedTuple):
    """A training function as trials get it."""

    name: str
    source_hash: str
    """First 16 hex digits of SHA-256 over its source, and that of what it uses of its module."""
    packed: str


def packed(train: Callable[..., Any]) -> Loop:
    """Returns a function as trials get it. Raises: ConfigError."""
    name = getattr(train, "__name__", type(train).__name__)
    if not callable(train):
        raise ConfigError(f"train must be a function of (params, run), but got {train!r:.80}.")
    taken = "others"
    try:
        signature = inspect.signature(train)
        taken = str(signature)
        signature.bind({}, None)
    # Builtins may have no signature: a ValueError.
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"train must be a function of two arguments, (params, run), but {name} takes"
            f" {taken}: {error}."
        ) from error
    return Loop(name, source_hash(train), _packed(train, name))


def calling(text: str) -> Callable[[dict[str, Any], Any], object]:
    """Returns what unpacks and calls the function; what goes wrong there is its own error."""
    return lambda params, run: _unpacked(text)(params, run)


# One function a process, so that data that it keeps, as with functools.cache, are there for the
# next trial.
@functools.lru_cache(maxsize=4)
def _unpacked(text: str) -> Callable[..., Any]:
    train: Callable[..., Any] = pickle.loads(base64.b64decode(text))
    return train


def source_hash(train: Callable[..., Any]) -> str:
    """Returns a hash over a function's source and what it uses of its module, or its bytecode."""
    digest = hashlib.sha256()
    for part in _parts(_plain(train), {}):
        source, scope = _source(part), _scope(part)
        named = [(name, scope.get(name)) for name in sorted(_names(source))]
        constants = [pair for pair in named if isinstance(pair[1], int | float | str)]
        digest.update(source.encode())
        digest.update(repr(constants).encode())
    return digest.hexdigest()[:16]


def _plain(train: Callable[..., Any]) -> Any:
    """Returns the function behind a method or a partial one, or a callable's class."""
    if isinstance(train, functools.partial):
        return _plain(train.func)
    if inspect.ismethod(train):
        return train.__func__
    train = inspect.unwrap(train)
    return train if inspect.isroutine(train) or inspect.isclass(train) else type(train)


def _parts(kind: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yields a function or class, and those of its module that its source names, each once."""
    if id(kind) in seen:
        return
    # The object as well: Python may reuse an id once its object is gone.
    seen[id(kind)] = kind
    yield kind
    scope = _scope(kind)
    for name in sorted(_names(_source(kind))):
        other = inspect.unwrap(scope[name]) if callable(scope.get(name)) else None
        is_own = getattr(other, "__module__", None) == getattr(kind, "__module__", "")
        if is_own and (inspect.isfunction(other) or inspect.isclass(other)):
            yield from _parts(other, seen)


def _scope(kind: Any) -> dict[str, Any]:
    module = sys.modules.get(getattr(kind, "__module__", ""))
    return getattr(kind, "__globals__", None) or (dict(vars(module)) if module else {})


def _names(source: str) -> set[str]:
    try:
        tree = ast.parse(source)
    # A lambda within an expression, or bytecode.
    except SyntaxError:
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _source(kind: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        code = getattr(kind, "__code__", None)
        return repr(kind) if code is None else f"{code.co_code.hex()} {code.co_names}"


def _packed(train: Callable[..., Any], name: str) -> str:
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        """Pickles functions with a cache as well, of modules that go by value, caches empty."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ in by_value:
                return _with_cache, (obj.__wrapped__, obj.cache_parameters())
            return super().reducer_override(obj)

    module = _own_module(train)
    by_value = {"__main__", *([module.__name__] if module else [])}
    file = io.BytesIO()
    if module is not None:
        cloudpickle.register_pickle_by_value(module)
    try:
        Pickler(file).dump(train)
    # Whatever a closure holds may refuse to travel, each in its own way.
    except Exception as error:
        raise ConfigError(
            f"train must be a function that can be sent to other processes, but {name} cannot:"
            f" {error}. Make what it uses of open files, locks and the like inside it."
        ) from error
    finally:
        # It holds for the process: all that is pickled later would take the module by value, too.
        if module is not None:
            cloudpickle.unregister_pickle_by_value(module)
    content = file.getvalue()
    if len(content) > MOST_MIB * 2**20:
        raise ConfigError(
            f"train must bring at most {MOST_MIB} MiB, but {name} brings"
            f" {len(content) / 2**20:.0f} MiB. Read data inside the function, once a process:"
            " with functools.cache on the function of yours that reads it."
        )
    return base64.b64encode(content).decode()


# At the module's level, as pickles name it.
def _with_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return cached


def _own_module(train: Callable[..., Any]) -> ModuleType | None:
    module = sys.modules.get(getattr(_plain(train), "__module__", "") or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ == "__main__":
        # What was typed in, or is in the script itself, cloudpickle takes by value anyhow.
        return None
    shared = [sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib")]
    is_installed = any(Path(file).resolve().is_relative_to(Path(p).resolve()) for p in shared)
    return None if is_installed else module

"""YAML text as a plain tree that knows the line of every value, and a tree as YAML text.

Scalars mean what YAML 1.2's core schema says: `1e-3` is a number, only `true` and `false` are
booleans, `1:30` and `010` are no surprises (text and ten). Nothing is ever constructed from a tag.
Source: https://yaml.org/spec/1.2.2/#103-core-schema; we also refuse `.inf`, `.nan` and integers
past 64 bits, as no field can hold them.
"""

import copy
import dataclasses
import functools
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tune_speed.core.errors import ConfigError, Problem

TreePath = tuple[str | int, ...]
"""Way to a value: keys of mappings and positions in lists."""

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 40
# Characters of a key. Messages repeat the keys around a value, so long ones would multiply.
MAX_KEY = 200
# Mistakes of one file that are reported.
MAX_PROBLEMS = 100

# YAML 1.1, which PyYAML resolves by itself, takes `yes` for true, `010` for 8 and `1e-3` for text.
_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLEANS = dict.fromkeys(("true", "True", "TRUE"), True)
_BOOLEANS |= dict.fromkeys(("false", "False", "FALSE"), False)
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED_INTEGER = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")

_SYNTAX_HINTS = {
    "'\\t'": "Indent with spaces; YAML allows no tabs there.",
    "mapping values are not allowed": "Is a line too far indented, or a text with `: ` not quoted?",
    "expected <block end>": "Do the fields of one mapping start in the same column?",
}


def dotted(path: TreePath) -> str:
    """Returns `recipe.batch_size[1]` for `("recipe", "batch_size", 1)`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


class Place(NamedTuple):
    """Where a value was written."""

    file: str | None
    line: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A tree of dicts, lists and scalars, with the place of every value in it."""

    tree: Any
    text: str
    file: str | None
    places: Mapping[TreePath, Place]
    problems: tuple[Problem, ...] = ()
    """Mistakes that leave a readable tree: each became a None, or a key that is left out."""

    def place(self, path: TreePath) -> Place:
        """Returns where `path` was written, or else the nearest mapping or list around it."""
        around = (path[:length] for length in range(len(path), -1, -1))
        return next((self.places[p] for p in around if p in self.places), Place(self.file, None))

    @property
    def stem(self) -> str:
        return Path(str(self.file)).stem

    def with_value(self, path: TreePath, value: Any, *, place: Place | None = None) -> "Source":
        """Returns a source with `value` at `path`, as if written at `place` (or where it stood)."""
        keep = {p: at for p, at in self.places.items() if p[: len(path)] != path}
        places = {**keep, path: place or self.place(path)}
        tree = _replaced(self.tree, path, value)
        return dataclasses.replace(self, tree=tree, places=places)


def _replaced(tree: Any, path: TreePath, value: Any) -> Any:
    if not path:
        return value
    if isinstance(tree, list) and isinstance(path[0], int):
        new = _replaced(tree[path[0]], path[1:], value)
        return [*tree[: path[0]], new, *tree[path[0] + 1 :]]
    mapping = tree if isinstance(tree, Mapping) else {}
    return {**mapping, path[0]: _replaced(mapping.get(path[0]), path[1:], value)}


def read_yaml(path: Path | str) -> Source:
    """Returns the tree of a YAML file. Raises: ConfigError, also if it is larger than 1 MiB."""
    return _checked(scan_file(path))


def parse_yaml(text: str, *, file: str | None = None) -> Source:
    """Returns the tree of `text`; `file` is only named. Raises: ConfigError."""
    return _checked(scan_yaml(text, file=file))


def scan_file(path: Path | str) -> Source:
    """Like `read_yaml`, but mistakes that leave a readable tree go to `Source.problems`."""
    try:
        with open(path, "rb") as stream:
            # A pipe has no size to look at beforehand: one byte too many says that it is too long.
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _error(f"must be a readable file: {error.strerror}", Place(str(path), None)) from None
    if len(data) > MAX_BYTES:
        raise _error(f"must be at most {MAX_BYTES >> 10} KiB long", Place(str(path), None))
    try:
        # `utf-8-sig` drops the byte order mark with which Windows editors begin a file.
        return scan_yaml(data.decode("utf-8-sig"), file=str(path))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _error("must be UTF-8 text", Place(str(path), line)) from None


def scan_yaml(text: str, *, file: str | None = None) -> Source:
    """Like `parse_yaml`, but mistakes that leave a readable tree go to `Source.problems`."""
    source = _scanned(text, file)
    return dataclasses.replace(source, tree=copy.deepcopy(source.tree))


# Each arm of an ablation is read from the same file again, with a few overrides of its own.
@functools.lru_cache(maxsize=64)
def _scanned(text: str, file: str | None) -> Source:
    if len(text) > MAX_BYTES:
        raise _error(f"must be at most {MAX_BYTES >> 10} KiB long", Place(file, None))
    reader = _Reader(text, file)
    root = reader.document()
    places: dict[TreePath, Place] = {}
    tree = reader.unfold(root, (), places)
    problems = tuple(dict.fromkeys(reader.problems))
    return Source(tree=tree, text=text, file=file, places=places, problems=problems)


def _checked(source: Source) -> Source:
    if source.problems:
        raise ConfigError(problems=source.problems)
    return source


def _error(must: str, place: Place, hint: str | None = None) -> ConfigError:
    problem = Problem(path="", must=must, hint=hint, file=place.file, line=place.line)
    return ConfigError(problems=(problem,))


@dataclasses.dataclass(frozen=True)
class _Node:
    """A scalar, a list of nodes, or a dict of nodes, and its line (its key's, if it has one)."""

    value: Any
    line: int


class _Reader:
    """Turns PyYAML's events into nodes. Events, as its composer recurses without a bound."""

    def __init__(self, text: str, file: str | None) -> None:
        self.text = text
        self.file = file
        self.problems: list[Problem] = []
        self._anchors: dict[str, _Node] = {}
        self._num_read = self._num_unfolded = 0
        try:
            self._loader: Any = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            raise self._unreadable(error) from None

    def document(self) -> _Node:
        self._next()
        if isinstance(self._next(), yaml.StreamEndEvent):
            raise self.fatal("must not be empty", None)
        root = self._node(self._next(), ())
        self._next()
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.fatal("must hold one document, not several parted by `---`", _line(event))
        return root

    def unfold(self, node: _Node, path: TreePath, places: dict[TreePath, Place]) -> Any:
        """Returns the plain tree of `node` and fills `places`. Bounded: aliases multiply."""
        # Counted again here: a few aliases of aliases in a short text unfold to billions of values.
        self._num_unfolded += 1
        if self._num_unfolded > MAX_NODES or len(path) > MAX_DEPTH:
            must = f"must have at most {MAX_NODES} values, {MAX_DEPTH} deep, aliases unfolded"
            raise self.fatal(must, node.line)
        places[path] = Place(self.file, node.line)
        if isinstance(node.value, dict):
            return {k: self.unfold(v, (*path, k), places) for k, v in node.value.items()}
        if isinstance(node.value, list):
            return [self.unfold(v, (*path, i), places) for i, v in enumerate(node.value)]
        return node.value

    def fatal(self, must: str, line: int | None, hint: str | None = None) -> ConfigError:
        return _error(must, Place(self.file, line), hint)

    def _problem(
        self,
        path: TreePath,
        must: str,
        line: int,
        *,
        given: str | None = None,
        hint: str | None = None,
    ) -> None:
        if len(self.problems) > MAX_PROBLEMS:
            return
        problem = Problem(
            path=dotted(path), must=must, given=given, hint=hint, file=self.file, line=line
        )
        self.problems.append(problem)
        if len(self.problems) == MAX_PROBLEMS:
            must = f"must have fewer than {MAX_PROBLEMS} mistakes for the others to be reported"
            self.problems.append(Problem(path="", must=must, file=self.file, line=line))

    def _next(self) -> Any:
        try:
            event = self._loader.get_event()
        except yaml.reader.ReaderError as error:
            raise self._unreadable(error) from None
        except yaml.MarkedYAMLError as error:
            raise self._not_yaml(error) from None
        except (ValueError, OverflowError):  # PyYAML hands `"\UFFFFFFFF"` to chr() as it is
            line = self._loader.line + 1
            raise self.fatal("must be YAML: an escape or a version is out of range", line) from None
        return event

    def _unreadable(self, error: yaml.reader.ReaderError) -> ConfigError:
        line = self.text.count("\n", 0, error.position) + 1
        return self.fatal(f"must not hold the character U+{int(error.character):04X}", line)

    def _not_yaml(self, error: yaml.MarkedYAMLError) -> ConfigError:
        begin, end = error.context_mark, error.problem_mark
        text = " ".join(filter(None, [error.context, error.problem]))
        if begin and end and begin.line != end.line:
            text += f" (it begins on line {begin.line + 1})"
        hint = next((hint for part, hint in _SYNTAX_HINTS.items() if part in text), None)
        mark = end or begin
        return self.fatal(f"must be YAML: {text}", mark.line + 1 if mark else None, hint)

    def _node(self, event: Any, path: TreePath) -> _Node:
        if len(path) > MAX_DEPTH:
            raise self.fatal(f"must be nested at most {MAX_DEPTH} deep", _line(event))
        self._num_read += 1
        if self._num_read > 2 * MAX_NODES:  # A value has a key at most.
            raise self.fatal(f"must have at most {MAX_NODES} values", _line(event))
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                must = f"`*{str(event.anchor)[:MAX_KEY]}` must name an anchor above it"
                raise self.fatal(must, _line(event))
            return self._anchors[event.anchor]
        node = _Node(self._value(event, path), _line(event))
        if event.tag is not None:
            given = event.tag.replace("tag:yaml.org,2002:", "!!")[:MAX_KEY]
            self._problem(path, "must have no tag; text is quoted instead", node.line, given=given)
            node = _Node(None, node.line)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _value(self, event: Any, path: TreePath) -> Any:
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[_Node] = []
            while not isinstance(item := self._next(), yaml.SequenceEndEvent):
                items.append(self._node(item, (*path, len(items))))
            return items
        assert isinstance(event, yaml.ScalarEvent)
        return self._scalar(event, path)

    def _mapping(self, path: TreePath) -> dict[str, _Node]:
        items: dict[str, _Node] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key, line = self._node(event, (*path, "?")).value, _line(event)
            if isinstance(key, str) and len(key) > MAX_KEY:
                raise self.fatal(f"must have keys of at most {MAX_KEY} characters", line)
            value = self._node(self._next(), (*path, key if isinstance(key, str) else "?"))
            if not isinstance(key, str):
                shown = "a mapping or list" if isinstance(key, dict | list) else json.dumps(key)
                self._problem(path, "keys must be text", line, given=shown, hint="Quote it.")
            elif key == "<<":
                self._problem(path, "must be written out, without merge keys", line, given="`<<`")
            elif key in items:
                must = f"must be given once; the first is on line {items[key].line}"
                self._problem((*path, key), must, line)
            else:
                # The key's line: a block mapping or list itself begins on the line below.
                items[key] = _Node(value.value, line)
        return items

    def _scalar(self, event: yaml.ScalarEvent, path: TreePath) -> Any:
        if _NO_TEXT.search(event.value):
            self._problem(path, "must be Unicode text without NUL", _line(event), given="an escape")
            return None
        # Only plain scalars are resolved: what is quoted, or a block, is text.
        if event.style is not None or not event.implicit[0]:
            return event.value
        try:
            return core_scalar(event.value)
        except ValueError as error:
            self._problem(path, str(error), _line(event), given=event.value[:MAX_KEY])
            return None


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def core_scalar(text: str) -> str | int | float | bool | None:
    """Returns what unquoted text means. Raises: ValueError: not finite, or past 64 bits."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text) or _BASED_INTEGER.fullmatch(text):
        # Python refuses to convert more than 4,300 digits.
        base = 0 if _BASED_INTEGER.fullmatch(text) else 10
        integer = int(text, base) if len(text) < 100 else 1 << 64
        if not -(1 << 63) <= integer < 1 << 63:
            raise ValueError("must be an integer of at most 64 bits")
        return integer
    if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
        # Python reads `inf` and `nan`, but not YAML's `.inf` and `.nan`.
        value = float(text.replace(".", "", 1)) if _NOT_FINITE.fullmatch(text) else float(text)
        if abs(value) < float("inf"):
            return value
        raise ValueError("must be a finite number")
    return text


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, and quotes every text that would read back as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    try:
        is_plain = _PLAIN.fullmatch(text) and isinstance(core_scalar(text), str)
    except ValueError:
        is_plain = False
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Dumper.add_representer(str, _represent_text)


def dump_yaml(tree: Any) -> str:
    """Returns YAML that `parse_yaml` reads back as an equal tree, floats exact.

    Raises: ValueError for what no file can hold: a number that is not finite, NUL in a text.
    """
    text = yaml.dump(
        tree,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=None,
        allow_unicode=True,
        # PyYAML folds texts after 80 characters otherwise.
        width=sys.maxsize,
    )
    # The reader has the last word: NaN, infinity, NUL and foreign types do not come back equal.
    if parse_yaml(text).tree != tree:
        raise ValueError(f"must be a tree of mappings, lists and finite scalars, but got {tree!r}.")
    return text

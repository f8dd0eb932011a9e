"""Reads a Dockerfile: its stages, the instructions that lead to one image, and its context."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    word: str
    """In capitals."""
    rest: str


class Stage(NamedTuple):
    """What stands from one FROM to the next."""

    parent: str
    """An image or an earlier stage."""
    instructions: list[Instruction]


class Dockerfile(NamedTuple):
    """Stages by name, the last one under `None`, and the values of ARGs before the first FROM."""

    stages: dict[str | None, Stage]
    arguments: dict[str, str]

    def image(self) -> tuple[str, list[Instruction]]:
        """Returns the base image of the last stage, and all instructions that lead from it."""
        stage = self.stages[None]
        instructions = stage.instructions
        while stage.parent in self.stages:
            stage = self.stages[stage.parent]
            instructions = [*stage.instructions, *instructions]
        return stage.parent, instructions


def parse(text: str, *, arguments: Mapping[str, str]) -> Dockerfile:
    """Returns the Dockerfile `text`, built with `arguments`."""
    stages: dict[str | None, Stage] = {}
    given: dict[str, str] = {}
    current: list[Instruction] | None = None
    for instruction in _instructions(text):
        if instruction.word == "FROM":
            parent, _, name = instruction.rest.partition(" AS ")
            current = []
            stage = Stage(expand(parent, given), current)
            stages[name.strip() or None] = stages[None] = stage
        elif current is None:
            name, _, default = instruction.rest.partition("=")
            given[name] = arguments.get(name, default)
        else:
            current.append(instruction)
    return Dockerfile(stages, {**given, **arguments})


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n", "", "\n".join(lines))
    for line in joined.splitlines():
        word, rest = line.split(None, 1)
        yield Instruction(word.upper(), rest.strip())


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Returns `text` with `$NAME` and `${NAME}` replaced; a name that is not there by nothing."""
    return re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], ""), text)


def pairs(text: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the `NAME=value` of an ENV or LABEL, with quotes removed."""
    return dict(part.split("=", 1) for part in shlex.split(expand(text, variables)))


def exec_form(text: str) -> list[str] | None:
    """Returns the words of `["a", "b"]`; None: it is for a shell."""
    if not text.startswith("["):
        return None
    words: list[str] = json.loads(text)
    return words


def context(root: Path, ignore_file: str) -> list[Path]:
    """Returns the files under `root`, relative to it, that a builder gets with that ignore file."""
    lines = [line.strip() for line in ignore_file.splitlines()]
    rules = [(line.removeprefix("!"), line.startswith("!")) for line in lines if line]
    rules = [(pattern, kept) for pattern, kept in rules if not pattern.startswith("#")]
    files = [path.relative_to(root) for path in _files(root)]
    return [file for file in files if _is_kept(file, rules)]


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in (".git", ".venv"):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path


def _is_kept(file: Path, rules: list[tuple[str, bool]]) -> bool:
    """The last rule that matches the file, or a folder that it is in, decides."""
    places = [file, *list(file.parents)[:-1]]
    decided = [kept for pattern, kept in rules if any(_matches(place, pattern) for place in places)]
    return not decided or decided[-1]


def _matches(place: Path, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return place.match(pattern[3:])
    return len(place.parts) == len(Path(pattern).parts) and place.match(pattern)

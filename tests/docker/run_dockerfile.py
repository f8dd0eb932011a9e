"""Carries out a Dockerfile in a folder with a root file system, where there is no Docker engine.

By hand, as root, on Linux; ROOT holds what the base image would: Debian with Python in /usr/local.

    python tests/docker/run_dockerfile.py docker/Dockerfile ROOT --build-arg DEVICE=cpu \
        --run 'tune-speed doctor' --run 'tune-speed search digits_quickstart --trials 3'

Each RUN is executed in ROOT (chroot) as the USER, in the WORKDIR, by the SHELL and with the ENV of
its line; COPY copies what the ignore file leaves of the context. `--run` then is `docker run`: as
the image's user, with its environment only, read-only but for /tmp, /store and /turnstile, without
capabilities. It does not cover: layers and their caching, the base image itself, networks, limits
of memory and CPU, GPUs, ADD, ONBUILD, `COPY --from`, heredocs and mounts of BuildKit.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dockerfile import Instruction, context, exec_form, expand, pairs, parse

WRITABLE = ("/store", "/turnstile")
KEPT = ("ENTRYPOINT", "CMD", "HEALTHCHECK", "STOPSIGNAL")
CONFIG = "image.json"


class Build:
    """The image as far as it has got."""

    def __init__(self, root: Path, repository: Path, files: list[Path], options: Any) -> None:
        self.root, self.repository, self.files = root, repository, files
        self.arguments: dict[str, str] = {}
        self.given = dict(each.split("=", 1) for each in options.build_arg)
        self.hosts = {name: os.environ[name] for name in options.pass_env}
        self.binds: list[str] = options.bind
        self.shell = ["/bin/sh", "-c"]
        self.config: dict[str, Any] = {"user": "0:0", "workdir": "/", "labels": {}}
        self.config["env"] = {
            "PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        }

    def do(self, instruction: Instruction) -> None:
        """Carries out one instruction."""
        word, rest = instruction
        variables = {**self.arguments, **self.config["env"]}
        if word == "RUN":
            self.run(rest)
        elif word == "COPY":
            self.copy(shlex.split(rest))
        elif word == "ENV":
            self.config["env"].update(pairs(rest, variables))
        elif word == "LABEL":
            self.config["labels"].update(pairs(rest, variables))
        elif word == "ARG":
            name, _, default = rest.partition("=")
            self.arguments[name] = self.given.get(name, default.strip('"'))
        elif word == "WORKDIR":
            self.config["workdir"] = rest
            (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "USER":
            self.config["user"] = rest
        elif word == "SHELL":
            self.shell = exec_form(rest) or self.shell
        elif word in KEPT:
            self.config[word.lower()] = expand(rest, variables) if word == "STOPSIGNAL" else rest
        else:
            raise SystemExit(f"{word} is not covered")

    def copy(self, words: list[str]) -> None:
        *sources, target = words
        place = self.root / os.path.join(self.config["workdir"], target).lstrip("/")
        for source in sources:
            found = [file for file in self.files if file.is_relative_to(source)]
            if not found:
                raise SystemExit(f"COPY {source}: not in the context")
            for file in found:
                inside = file.relative_to(source)
                into_folder = target.endswith("/") and inside == Path(".")
                to = place / file.name if into_folder else place / inside
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.repository / file, to)

    def run(self, rest: str) -> None:
        words = exec_form(rest) or [*self.shell, rest]
        variables = self.arguments | self.hosts
        status = in_chroot(
            self.root, words, config=self.config, variables=variables, binds=self.binds
        )
        if status:
            raise SystemExit(f"ended with {status}: {rest}")


def in_chroot(
    root: Path,
    words: list[str],
    *,
    config: dict[str, Any],
    variables: dict[str, str],
    binds: list[str],
    is_sealed: bool = False,
) -> int:
    """Runs a command in `root` as the image has it: user, folder, variables; returns its status."""
    env = {"HOME": "/root", **config["env"], **variables}
    user, _, group = config["user"].partition(":")
    lines = ["set -e", "mount --make-rprivate /", f"mount --bind {root} {root}", f"cd {root}"]
    lines += ["mount -t proc proc proc", "mount --rbind /dev dev"]
    for place in ["/etc/resolv.conf", "/etc/hosts", *binds]:
        lines += [f"[ -d {place} ] && mkdir -p .{place} || touch .{place}"]
        lines += [f"mount --bind -o ro {place} .{place}"]
    if is_sealed:
        lines += [f"mount --bind .{place} .{place}" for place in WRITABLE]
        lines += ["mount -t tmpfs -o mode=1777 tmpfs tmp", f"mount -o remount,bind,ro {root}"]
    drop = "--no-new-privs --bounding-set=-all --inh-caps=-all" if is_sealed else ""
    inner = f"cd {config['workdir']}; exec setpriv --reuid {user} --regid {group} --clear-groups"
    inner += f' {drop} env -i "$@"'
    variables_as_words = [f"{name}={value}" for name, value in env.items()]
    chroot = ["chroot", ".", "/bin/sh", "-c", inner, "sh", *variables_as_words, *words]
    lines += [f"exec {shlex.join(chroot)}"]
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c"]
    return subprocess.run([*apart, "\n".join(lines)], check=False).returncode


def main() -> None:
    """Builds, unless `--no-build`, and runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--pass-env", action="append", default=[], metavar="NAME")
    parser.add_argument("--bind", action="append", default=[], metavar="PATH")
    parser.add_argument("--run", action="append", default=[], metavar="COMMAND")
    parser.add_argument("--no-build", action="store_true", help="only --run")
    parser.add_argument(
        "--last-stage", action="store_true", help="take RUN and COPY before as done"
    )
    options = parser.parse_args()
    root, repository = options.root.resolve(), options.dockerfile.resolve().parents[1]
    assert root != Path("/"), root
    if not options.no_build:
        build(options, root, repository)
    config = json.loads((root / CONFIG).read_text())
    for command in options.run:
        words = [*(exec_form(config["entrypoint"]) or []), *shlex.split(command)]
        say(f"docker run {command}")
        status = in_chroot(
            root, words, config=config, variables={}, binds=options.bind, is_sealed=True
        )
        say(f"ended with {status}")


def build(options: argparse.Namespace, root: Path, repository: Path) -> None:
    """Carries out the instructions that lead to the image, and keeps its configuration."""
    given = dict(each.split("=", 1) for each in options.build_arg)
    file = parse(options.dockerfile.read_text(), arguments=given)
    ignore = Path(f"{options.dockerfile}.dockerignore")
    files = context(repository, ignore.read_text() if ignore.exists() else "")
    building = Build(root, repository, files, options)
    building.given = {**file.arguments, **building.given}
    base, instructions = file.image()
    last = file.stages[None].instructions
    say(f"FROM {base} (must be what {root} holds); context: {len(files)} files")
    for number, instruction in enumerate(instructions, start=len(last) - len(instructions)):
        if options.last_stage and number < 0 and instruction.word in ("RUN", "COPY"):
            continue
        say(f"{instruction.word} {instruction.rest}"[:150])
        building.do(instruction)
    (root / CONFIG).write_text(json.dumps(building.config, indent=2))
    print((root / CONFIG).read_text())


def say(text: str) -> None:
    """Prints a line of progress with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", file=sys.stderr, flush=True)


STARTED = time.monotonic()

if __name__ == "__main__":
    main()

"""Runs services of a compose file without an engine, for tests: as processes apart from others.

Each has namespaces of its own (network, host name, mounts, processes), a root of `/usr`, `/etc`
and our Python, read-only where the file says so, tmpfs, volumes and secrets at their places,
the image's variables and user, and no capabilities. What is not there: images, limits of memory and
CPU, published ports, and a way out. The kernel ends all processes of one with its first.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from compose_file import DOCKER, ROOT
from dockerfile import pairs, parse

IMAGE_UID = 10001
OTHER_UID = 10002
"""Of services with an image that is not ours."""
PROGRAMS = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
# As tini does: hands the signal on, and reaps what is left.
INIT = 'trap "kill -TERM \\$child" TERM; "$@" & child=$!; wait $child; wait $child'


class Container:
    def __init__(
        self, name: str, service: dict[str, Any], *, command: list[str], log: Path
    ) -> None:
        self.name, self.service, self.command, self.log = name, service, command, log
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as file:
            return subprocess.Popen(self.command, stdout=file, stderr=subprocess.STDOUT)

    def restart_if_ended(self) -> None:
        if self.process.poll() is not None:
            assert self.service["restart"] == "unless-stopped"
            self.process = self._start()

    @property
    def is_running(self) -> bool:
        ours = psutil.Process(self.process.pid)
        return self.process.poll() is None and bool(ours.children())

    def inside(self) -> list[str]:
        """Returns the words before a command that is to run in it."""
        first = psutil.Process(self.process.pid).children()[0].pid
        apart = ["nsenter", "--target", str(first), "--mount", "--uts", "--net", "--pid", "--root"]
        return [*apart, *_as_user(self.service)]


class Engine:
    """The networks, volumes and containers of one compose file; `close` removes them all."""

    def __init__(self, compose: dict[str, Any], folder: Path, *, secrets: Path) -> None:
        self.compose, self.folder, self.secrets = compose, folder, secrets
        self.containers: dict[str, Container] = {}
        self.prefix = f"ts{os.getpid()}"
        self.namespaces: list[str] = []
        self.networks = [*compose["networks"]]
        self.hosts: dict[str, dict[str, str]] = {}
        """Addresses of services, by network."""
        self._switch = self._new_namespace("switch")
        for number in range(len(self.networks)):
            _ip("-n", self._switch, "link", "add", f"br{number}", "type", "bridge")
            _ip("-n", self._switch, "link", "set", f"br{number}", "up")
        for volume in compose["volumes"]:
            (folder / volume).mkdir(parents=True)

    def start(self, name: str, *, number: int = 1, command: list[str] | None = None) -> Container:
        service = self.compose["services"][name]
        space = self._new_namespace(f"{name}{number}")
        addresses = self._connect(name, number, space, service.get("networks", ["default"]))
        words = command or service["command"]
        script = self._set_up(f"{name}{number}", service, addresses, words)
        log = self.folder / f"{name}{number}.log"
        apart = [
            "unshare",
            "--mount",
            "--uts",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
            "-c",
            script,
        ]
        # They end with us, too, however we end.
        words = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", space, *apart]
        container = Container(f"{name}{number}", service, command=words, log=log)
        self.containers[container.name] = container
        return container

    def exec(
        self, container: Container, words: list[str], *, timeout_s: float
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command in a container, as `docker compose exec`."""
        workdir = "/store" if container.service["image"].startswith("tune-speed") else "/"
        env, *variables = self._variables(container.service)
        command = [*container.inside(), env, f"--chdir={workdir}", *variables, *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def wait_until_healthy(self, container: Container, *, timeout_s: float) -> None:
        """Waits until the service's own check passes, and starts it again if it ends before.

        Raises: AssertionError if it does not in time.
        """
        kind, *words = container.service["healthcheck"]["test"]
        assert kind == "CMD"
        end_s, said = time.monotonic() + timeout_s, ""
        while time.monotonic() < end_s:
            for each in self.containers.values():
                each.restart_if_ended()
            if container.is_running:
                is_healthy, said = self._check(container, words)
                if is_healthy:
                    return
            time.sleep(0.5)
        raise AssertionError(
            f"{container.name} is not healthy: {said}\n{container.log.read_text()}"
        )

    def _check(self, container: Container, words: list[str]) -> tuple[bool, str]:
        try:
            checked = self.exec(container, words, timeout_s=20)
        except subprocess.TimeoutExpired:
            return False, "no answer"
        return checked.returncode == 0, checked.stderr

    def close(self) -> None:
        """Kills all processes and removes the namespaces; mounts go with them."""
        for container in self.containers.values():
            container.process.kill()
            container.process.wait(timeout=30)
        for space in self.namespaces:
            _ip("netns", "delete", space)

    def _new_namespace(self, name: str) -> str:
        space = f"{self.prefix}-{name}"
        _ip("netns", "add", space)
        self.namespaces.append(space)
        _ip("-n", space, "link", "set", "lo", "up")
        return space

    def _connect(self, name: str, number: int, space: str, networks: list[str]) -> dict[str, str]:
        """Plugs the container into its networks; returns addresses by the names it knows."""
        known: dict[str, str] = {}
        last = len(self.namespaces)
        for network in networks:
            which = self.networks.index(network)
            address = f"10.231.{which}.{last}"
            peer = ["type", "veth", "peer", "name", f"v{last}", "netns", self._switch]
            _ip("-n", space, "link", "add", f"eth{which}", *peer)
            _ip("-n", self._switch, "link", "set", f"v{last}", "master", f"br{which}", "up")
            _ip("-n", self._switch, "link", "set", f"v{last}", "name", f"n{which}v{last}")
            _ip("-n", space, "address", "add", f"{address}/24", "dev", f"eth{which}")
            _ip("-n", space, "link", "set", f"eth{which}", "up")
            known |= self.hosts.get(network, {})
            own = {name: address} if number == 1 else {}
            self.hosts.setdefault(network, {}).update(own)
            known |= {f"{name}{number}": address, **own}
        return known

    def _variables(self, service: dict[str, Any]) -> list[str]:
        """Returns `env -i NAME=value …`: the image's, then the service's."""
        image = _image_variables() if service["image"].startswith("tune-speed") else {}
        own = {"PATH": PROGRAMS, "HOME": "/", **image}
        both = {**own, **service.get("environment", {})}
        return ["env", "-i", *(f"{name}={value}" for name, value in both.items())]

    def _set_up(
        self, name: str, service: dict[str, Any], hosts: dict[str, str], words: list[str]
    ) -> str:
        """Returns the script that makes the container's root, enters it and runs the command."""
        root = self.folder / f"{name}-root"
        root.mkdir()
        etc = self.folder / f"{name}-etc"
        etc.mkdir()
        uid = _uid(service)
        lines = [f"{address} {host}" for host, address in hosts.items()]
        (etc / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{x}\n" for x in lines))
        user = f"service:x:{uid}:{uid}::/tmp:/bin/bash\n"
        (etc / "passwd").write_text(Path("/etc/passwd").read_text() + user)
        mounts = [*_base_mounts(root, etc), f"hostname {name}"]
        for place in service.get("tmpfs", []):
            where, _, options = place.partition(":")
            # What an engine adds to options unless they say otherwise.
            flags = "" if "exec" in options.split(",") else "noexec,"
            options = options.replace("exec,", "") or "mode=1777"
            mounts += [f"mkdir -p {root}{where}"]
            mounts += [f"mount -t tmpfs -o {flags}nosuid,nodev,{options} tmpfs {root}{where}"]
        for volume in service.get("volumes", []):
            mounts += self._volume_mount(root, volume, uid=uid)
        for secret in service.get("secrets", []):
            file = Path(self.compose["secrets"][secret]["file"]).name
            target = f"{root}/run/secrets/{secret}"
            mounts += [f"mkdir -p {root}/run/secrets", f"touch {target}"]
            mounts += [f"mount --bind -o ro {self.secrets / file} {target}"]
        if service.get("read_only"):
            mounts += [f"mount -o remount,bind,ro {root}"]
        workdir = "/store" if "/store" in str(service.get("volumes")) else "/"
        command = [
            *_as_user(service),
            *self._variables(service),
            "bash",
            "-c",
            INIT,
            "init",
            *words,
        ]
        enter = ["chroot", str(root), "bash", "-c", f'cd {workdir}; exec "$@"', "sh", *command]
        return "\n".join(["set -e", *mounts, f"exec {shlex.join(enter)}"])

    def _volume_mount(self, root: Path, volume: str, *, uid: int) -> list[str]:
        source, target, *options = volume.split(":")
        is_named = source in self.compose["volumes"]
        place = self.folder / source if is_named else (DOCKER / source).resolve()
        if is_named:
            os.chown(place, uid, uid)  # The image's folder is its user's, and so is a new volume.
        readonly = ["-o", "ro"] if "ro" in options else []
        mount = shlex.join(["mount", "--bind", *readonly, str(place), f"{root}{target}"])
        return [f"mkdir -p {root}{target}", mount]


def why_none() -> str | None:
    """Returns what containers lack here; None: nothing."""
    if os.geteuid() != 0:
        return "needs root, to make namespaces"
    programs = ("ip", "unshare", "nsenter", "setpriv", "wget")
    if missing := [program for program in programs if shutil.which(program) is None]:
        return f"needs {', '.join(missing)}"
    if any(Path(place).is_relative_to("/tmp") for place in (sys.prefix, sys.base_prefix, ROOT)):
        return "needs a checkout and a Python outside /tmp, which containers have of their own"
    tried = subprocess.run(
        ["unshare", "--mount", "--uts", "--pid", "--net", "--fork", "true"], check=False
    )
    return "may not make namespaces" if tried.returncode else None


def _base_mounts(root: Path, etc: Path) -> list[str]:
    """Returns commands that make a root of this machine's programs and nothing else of it."""
    lines = ["mount --make-rprivate /", f"mount -t tmpfs -o mode=755 tmpfs {root}", f"cd {root}"]
    lines += ["mkdir -p usr etc proc dev sys tmp run store artifacts turnstile"]
    for place in ("/bin", "/sbin", "/lib", "/lib64"):
        lines += [f"[ -L {place} ] && ln -s usr{place} .{place}"]
    lines += ["mount --rbind -o ro /usr usr", "mount --rbind -o ro /etc etc"]
    lines += [f"mount --bind {etc}/{name} etc/{name}" for name in ("hosts", "passwd")]
    lines += ["mount -t proc proc proc", "mount --rbind /sys sys", "mount --rbind /dev dev"]
    lines += ["mount -t tmpfs -o mode=1777,size=1g tmpfs dev/shm", "chmod 1777 tmp"]
    for place in {sys.prefix, sys.base_prefix, str(ROOT)}:
        lines += [f"mkdir -p .{place}", f"mount --bind -o ro {place} .{place}"]
    return [*lines, "cd /"]


def _image_variables() -> dict[str, str]:
    _, instructions = parse((DOCKER / "Dockerfile").read_text(), arguments={}).image()
    found: dict[str, str] = {}
    for word, rest in instructions:
        if word == "ENV":
            found |= pairs(rest, found)
    return found


def _uid(service: dict[str, Any]) -> int:
    return IMAGE_UID if service["image"].startswith("tune-speed") else OTHER_UID


def _as_user(service: dict[str, Any]) -> list[str]:
    uid = str(_uid(service))
    drop = ["--no-new-privs"] if "no-new-privileges:true" in service["security_opt"] else []
    drop += ["--bounding-set=-all", "--inh-caps=-all"] if service["cap_drop"] == ["ALL"] else []
    return ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", *drop]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=30)

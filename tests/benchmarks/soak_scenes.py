"""Faults of searches on this machine alone, with MLflow's store in a file; see `bench_soak`.

Each is a scene in a folder of its own: a search (or what one left), what happens to it, and its
end: `--resume` finishes all that was proposed, and the claims are checked.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from helpers.command import finished, ledger
from helpers.processes import command_of
from helpers.tracking.stores import locked
from soak_claims import check_records
from soak_world import (
    DOCUMENTED,
    FREEZE_S,
    LIMIT_S,
    LONGEST_S,
    Commands,
    Process,
    ShiftedClock,
    frozen,
)

FAULTY = Path(__file__).parents[1] / "faults" / "faulty"
START_S = 240.0
OTHER_USER = "setpriv --reuid=54321 --clear-groups --inh-caps=+dac_read_search"
OTHER_USER += " --ambient-caps=+dac_read_search"
"""May read this Python, wherever it is, and start no more processes than the limit."""
MOUNT = 'unshare -m sh -c \'mount -t tmpfs -o {} none "{}" && exec "$@"\' sh'
ODD = (
    *("env -u HOME", "HOME=/nonexistent/home", "TMPDIR=/nonexistent", 'TMPDIR="$PWD/a b"'),
    *("env -u LANG PYTHONUTF8=0", "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"),
    *("PYTHONOPTIMIZE=1", 'TMPDIR=$(printf "$PWD/%0240d" 0) && mkdir -p "$TMPDIR" &&', OTHER_USER),
    *("mkdir gone && cd gone && rmdir ../gone &&", "cd /proc &&"),
    *(MOUNT.format("ro", "$HOME"), MOUNT.format("size=16m", "/dev/shm")),
)
"""What is not as usual, before a command: an environment, a folder, a disk, a user."""
USUAL = {"ray", "torchinductor_root", "tune_speed-turnstile"}
"""What a session leaves in TMPDIR, for the next."""
PIPED = (
    *("leaderboard --study tiny", "list studies", "list models", "show tiny/t0000", "schema"),
    *("leaderboard --study tiny --json", "report tiny --json", "best --study tiny", "--help"),
)


OPEN: list["Place"] = []
"""Those that are to be closed yet."""


class Place(Commands):
    def __init__(self, study: str, *, rng: Random, clock: bool = False) -> None:
        self.rng = rng
        OPEN.append(self)
        folder = Path(tempfile.mkdtemp(prefix="soak-"))
        for name in ("faults", "t"):
            (folder / name).mkdir()
        (folder / "tiny.yaml").write_text(study)
        self.clock = ShiftedClock(folder)
        path = os.pathsep.join(filter(None, [str(FAULTY), os.environ.get("PYTHONPATH")]))
        own = {"PYTHONPATH": path, "FAULTS_FOLDER": f"{folder}/faults", "TMPDIR": f"{folder}/t"}
        super().__init__(folder, **own, **(self.clock.variables if clock else {}))
        self.studies = folder / "tune_speed_studies"
        self.database = folder / "mlflow.db"

    def search(self, *options: str, prefix: Sequence[str] = (), **variables: str) -> Process:
        return self.start(
            "search", f"{self.folder}/tiny.yaml", *options, prefix=prefix, **variables
        )

    def begun(self, *options: str, prefix: Sequence[str] = ()) -> Process:
        """Returns a search that has finished two trials."""
        process = self.search(*options, prefix=prefix)
        self.goes_on(process, within_s=START_S)
        return process

    def goes_on(self, process: Process, *, within_s: float = LIMIT_S) -> None:
        seen = len(finished(self.folder))
        for number in (seen + 1, seen + 2):
            deadline = time.monotonic() + within_s
            while process.poll() is None and len(finished(self.folder)) < number:
                if time.monotonic() > deadline:
                    self.broken.append(f"hangs: no trial in {within_s:g} s: {self.said(process)}")
                    return
                time.sleep(0.2)

    def ask(self, process: Process) -> None:
        """Has it end by Ctrl-C; one that ended before must have said why."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        self.end(process, DOCUMENTED)

    def settle(self, *studies: str) -> None:
        """Finishes what was proposed, and a trial more; what does not hold is broken."""
        for study in studies or ("tiny",):
            number = sum(event["event"] == "proposed" for event in ledger(self.folder, study))
            options = ["--resume"] if ledger(self.folder, study) else []
            options += ["--trials", str(number + 1), "--set", f"study={study}"]
            self.end(self.search(*options), {0, 1}, within_s=LONGEST_S)
            claims = check_records(self.folder, self.database, study)
            self.broken += [f"{study}: not so: {text}" for text, true in claims.items() if not true]
        self.look_for_left()

    def look_for_left(self) -> None:
        self.broken += [f"left: {each}" for each in self.left()]
        there = {path.name for path in (self.folder / "t").iterdir()} - USUAL
        self.broken += [f"left in TMPDIR: {name}" for name in there]

    def close(self, kept: Path | None) -> None:
        """Ends and removes all of it, or keeps what was broken."""
        OPEN.remove(self)
        self.kill_all()
        if self.broken and kept is not None:
            ignore = shutil.ignore_patterns("t", "cache", "*.so")
            shutil.copytree(self.folder, kept / self.folder.name, ignore=ignore, symlinks=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def during(act: Callable[[Place, Process], None]) -> Callable[[Place], None]:
    """Returns a scene of what happens to a search that runs, and goes on or ends by itself."""

    def scene(place: Place) -> None:
        search = place.begun()
        act(place, search)
        place.goes_on(search)
        place.ask(search)
        place.settle()

    return scene


def after(act: Callable[[Place], None]) -> Callable[[Place], None]:
    """Returns a scene of what happens to a study whose search has ended."""

    def scene(place: Place) -> None:
        place.run("search", "tiny.yaml", "--trials", "3", codes={0, 1})
        act(place)
        place.settle()

    return scene


def freeze(name: str) -> Callable[[Place], None]:
    def act(place: Place, search: Process) -> None:
        found = [p for p in place.processes() if name in command_of(p)]
        frozen(found, place.rng.uniform(*FREEZE_S))

    return during(act)


def second_driver(place: Place, _: Process) -> None:
    for options in ((), ("--resume",)):
        place.run("search", "tiny.yaml", *options, codes={2})


def commands_beside(place: Place, _: Process) -> None:
    certify = place.start("certify", "tiny", "--top", "1", "--seeds", "2", "--final", "0")
    for command in ("report tiny", "leaderboard --study tiny", "show tiny/t0000", "doctor"):
        place.run(*command.split())
    place.run("delete", "tiny", "--yes", codes={2})
    with suppress(subprocess.TimeoutExpired):
        certify.wait(60)
    place.ask(certify)


def serve_with_viewer(place: Place, _: Process) -> None:
    """Kills a server that is being looked at, and ends another by Ctrl-C."""
    for number, codes in ((signal.SIGKILL, {-9}), (signal.SIGINT, {130})):
        server = place.start("serve", "--port", "0")
        deadline = time.monotonic() + LIMIT_S
        while "Ctrl-C ends it" not in (said := place.said(server)) and time.monotonic() < deadline:
            time.sleep(0.2)
        where = urlsplit(said.partition("browser: ")[2].split()[0])
        with closing(HTTPConnection(where.hostname or "", where.port, timeout=30)) as viewer:
            with suppress(OSError, HTTPException):
                viewer.request("GET", "/studies/tiny/events")
                answer = viewer.getresponse()
                place.broken += [] if answer.status == 200 else [f"serve: {answer.status}"]
                answer.read(1)
            time.sleep(place.rng.uniform(0, 5))
            os.killpg(server.pid, number)
            place.end(server, codes)


def change_database(how: Callable[[Place], None]) -> Callable[[Place], None]:
    """Returns a scene in which MLflow's file changes; one that is damaged is moved away then."""

    def act(place: Place, search: Process) -> None:
        old = place.folder / "old.db"
        with closing(sqlite3.connect(place.database)) as now, closing(sqlite3.connect(old)) as copy:
            now.backup(copy)
        place.goes_on(search)
        how(place)
        place.goes_on(search)
        for command in ("leaderboard --study tiny", "report tiny", "list studies"):
            place.run(*command.split(), codes=DOCUMENTED)
        if how in (damage, older_beside_log):
            place.ask(search)
            place.run("search", "tiny.yaml", "--resume", "--trials", "1", codes=DOCUMENTED)
            place.database.rename(place.folder / "damaged.db")

    return during(act)


def damage(place: Place) -> None:
    with place.database.open("r+b") as file:
        file.seek(4096 * place.rng.randrange(1, 20))
        file.write(place.rng.randbytes(20 * 4096))


def older(place: Place) -> None:
    """Puts back what `change_database` kept, as one should who does not stop the search first."""
    for suffix in ("-wal", "-shm"):
        Path(f"{place.database}{suffix}").unlink(missing_ok=True)
    (place.folder / "old.db").replace(place.database)


def older_beside_log(place: Place) -> None:
    """Puts it back where SQLite has a log of what came later, which damages it."""
    shutil.copy(place.folder / "old.db", place.database)


def lock(place: Place) -> None:
    with locked(place.database):
        time.sleep(place.rng.uniform(*FREEZE_S))


def move(place: Place, _: Process) -> None:
    """Moves the study's folder away under its search, and back."""
    here, there = place.studies / "tiny", place.folder / "moved"
    here.rename(there)
    time.sleep(place.rng.uniform(1, 15))
    if here.exists():
        place.broken += ["begun again where it was moved away"] * (here / "ledger.jsonl").exists()
        shutil.rmtree(here)
    there.rename(here)


def rename(place: Place) -> None:
    """Resumes a study whose folder has another name: refused or not, nothing is mixed up."""
    here, there = place.studies / "tiny", place.studies / "other"
    here.rename(there)
    options = ("--set", "study=other", "--resume", "--trials", "4")
    place.run("search", "tiny.yaml", *options, codes={0, 1, 2, 5})
    for command in ("leaderboard --study tiny", "report tiny", "show tiny/t0000", "list studies"):
        place.run(*command.split(), codes=DOCUMENTED)
    there.rename(here)


def link(place: Place) -> None:
    """Puts a link where the study's folder was: resumed, and deleted only as far as it is ours."""
    here, there = place.studies / "tiny", place.folder / "elsewhere"
    here.rename(there)
    here.symlink_to(there)
    place.run("search", "tiny.yaml", "--resume", "--trials", "4", codes={0, 1, 2, 5})
    place.run("report", "tiny")
    here.unlink()
    there.rename(here)


def kill_delete(place: Place) -> None:
    for _ in range(3):
        place.kill("delete", "tiny", "--yes", after_s=place.rng.uniform(0.5, 6))
    place.run("delete", "tiny", "--yes", codes={0, 2})
    place.broken += ["delete left the folder"] * (place.studies / "tiny").exists()


def kill_certify(place: Place) -> None:
    """Kills a certification, which resumes when it is given again; each seed is there once."""
    command = ("certify", "tiny", "--top", "2", "--seeds", "2", "--final", "0")
    for _ in range(3):
        place.kill(*command, after_s=place.rng.uniform(8, 30))
    place.run(*command)
    lines = map(json.loads, (place.studies / "tiny" / "certify-1.jsonl").read_text().splitlines())
    runs = Counter((e["name"], e["stage"], e["round"]) for e in lines if e["event"] == "run")
    place.broken += [f"certified: {runs}"] * (set(runs.values()) != {1})
    with closing(sqlite3.connect(place.database)) as connection:
        query = (
            "select r.name from runs r join tags t on r.run_uuid = t.run_uuid where"
            " t.key = 'tune_speed.kind' and t.value = 'certified' and r.lifecycle_stage = 'active'"
        )
        names = Counter(name for (name,) in connection.execute(query))
    place.broken += [f"certified in MLflow: {names}"] * (set(names.values()) != {1})


def readers_leave(place: Place) -> None:
    """Has what is printed read by `head -1`, which goes away."""
    for command in PIPED:
        shell = '"$@" | head -1; exit ${PIPESTATUS[0]}'
        prefix = ("bash", "-c", shell, "bash")
        place.end(place.start(*command.split(), prefix=prefix), {0, 1, 141}, within_s=LONGEST_S)


def reader_leaves(place: Place) -> None:
    """The same of what a search prints."""
    shell = f'"$@" {place.rng.choice(("", "2>&1"))} | head -1; exit ${{PIPESTATUS[0]}}'
    search = place.begun("--trials", "6", prefix=("bash", "-c", shell, "bash"))
    place.end(search, {0, 1, 141}, within_s=START_S)
    place.settle()


def hang_up(place: Place) -> None:
    """Closes the terminal of a search."""
    terminal = place.begun(prefix=("bash", "-c", 'exec script -qec "$*" typescript', "bash"))
    terminal.kill()
    place.end(terminal, {-9})
    deadline = time.monotonic() + LIMIT_S
    while place.processes() and time.monotonic() < deadline:
        time.sleep(0.5)
    said = (place.folder / "typescript").read_text(errors="replace")
    place.broken += [said[-3000:]] * ("Traceback" in said)
    place.broken += [f"hangs: left after a hang-up: {each}" for each in place.left()]
    place.settle()


def odd(places: Sequence[str]) -> Callable[[Place], None]:
    """Returns a scene of a search in one of these places: it runs, or says what it lacks."""

    def scene(place: Place) -> None:
        where = place.rng.choice(places)
        for name in ("a b", "cache"):
            (place.folder / name).mkdir()
        subprocess.run(["chmod", "-R", "a+rwX", str(place.folder)], check=True, timeout=60)
        own = {"TUNE_SPEED_CACHE": f"{place.folder}/cache", "HOME": f"{place.folder}/a b"}
        prefix = ["bash", "-c", f'{where} "$@"', "bash"]
        search = place.search("--trials", "3", prefix=prefix, **own)
        code = place.end(search, DOCUMENTED, within_s=START_S)
        print(f"        {where}: exit code {code}", flush=True)
        place.settle()

    return scene


def set_clock_back(place: Place, _: Process) -> None:
    place.clock.shift(-place.rng.choice((5, 60, 3600, 86400)))


def five_searches(place: Place) -> None:
    studies = [f"tiny{number}" for number in range(5)]
    own = ("--trials", "3", "--concurrent", "1")
    searches = [place.search("--set", f"study={study}", *own) for study in studies]
    for search in searches:
        place.end(search, {0, 1}, within_s=LONGEST_S)
    place.settle(*studies)


SCENES: dict[str, Callable[[Place], None]] = {
    "freeze the driver for 5 to 40 s": freeze("tune-speed search"),
    "freeze the trials for 5 to 40 s": freeze("TrialProcess"),
    "freeze the raylet for 5 to 40 s": freeze("raylet/raylet"),
    "freeze the GCS for 5 to 40 s": freeze("gcs_server"),
    "two drivers of one study": during(second_driver),
    "certify, report, delete beside a search": during(commands_beside),
    "kill serve, with a viewer": during(serve_with_viewer),
    "delete mlflow.db": change_database(lambda place: place.database.unlink()),
    "lock mlflow.db for 5 to 40 s": change_database(lock),
    "damage mlflow.db": change_database(damage),
    "an older mlflow.db": change_database(older),
    "an older mlflow.db beside a newer log": change_database(older_beside_log),
    "set the clock back": during(set_clock_back),
    "move the study's folder, and back": during(move),
    "rename the study's folder": after(rename),
    "link the study's folder": after(link),
    "kill -9 delete": after(kill_delete),
    "kill -9 certify, resumed": after(kill_certify),
    "| head -1": after(readers_leave),
    "search | head -1": reader_leaves,
    "close the terminal": hang_up,
    "ulimit -n": odd([f"prlimit --nofile={n}" for n in (64, 128, 256, 1024)]),
    "ulimit -u": odd([f"{OTHER_USER} prlimit --nproc={n}" for n in (20, 60, 150, 400)]),
    "ulimit -v": odd([f"prlimit --as={n << 30}" for n in (1, 2, 4, 8, 16, 64)]),
    "an odd environment": odd(ODD),
    "five searches in one folder": five_searches,
}


def play(name: str, study: str, *, rng: Random, kept: Path | None) -> dict[str, Any]:
    """Lets a scene happen; returns how long it took, its exit codes, and what was broken."""
    began_s = time.monotonic()
    place = Place(study, rng=rng, clock="clock" in name)
    try:
        SCENES[name](place)
    except Exception:  # Of the soak's, or a store that cannot be read: the hour goes on.
        place.broken.append(traceback.format_exc())
    finally:
        place.close(kept)
    codes = {f"{command} {code}": n for (command, code), n in sorted(place.codes.items())}
    took_s = time.monotonic() - began_s
    return {"took_s": took_s, "codes": codes, "slowest": place.slowest, "broken": place.broken}

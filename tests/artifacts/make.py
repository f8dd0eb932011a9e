"""Makes the artifacts anew, with the version that is installed: `python make.py NEUTRAL_FOLDER`.

The folder should be one whose name tells nothing, such as /tmp/study-a: MLflow stores it.
"""

import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
from contextlib import closing
from pathlib import Path

import psutil

HERE = Path(__file__).parent
CERTIFY = ("--top", "2", "--seeds", "3", "--final", "1", "--final-seeds", "3")
LOOP = ("--train", "my_loop.py:climbs")
COMMANDS = (
    ("search", "tiny.yaml"),
    ("certify", "tiny", *CERTIFY),
    ("best", "--study", "tiny", "--export", "best.yaml"),
    ("show", "tiny/t0001", "--export", "shown.yaml"),
    ("search", "plugged.yaml", "--plugin", "my_nets.py"),
    ("search", "hill.yaml", *LOOP),
    ("certify", "hill", *LOOP, "--top", "1", "--seeds", "2", "--final", "0"),
    ("ablate", "small.yaml", "--axes", "accumulation_steps=2,label_smoothing=0.1", "--seeds", "2"),
)
KILLED = (  # A checkpoint, and the step from which on the search is killed.
    (("search", "broken.yaml"), "broken/checkpoints/t0001.ckpt", 600),
    (("search", "slope.yaml", *LOOP), "slope/checkpoints/t0000.ckpt", 100),
)


def main(folder: Path) -> None:
    folder.mkdir()
    for file in (HERE / "inputs").iterdir():
        shutil.copy(file, folder / file.name.removesuffix(".txt"))
    for command in COMMANDS:
        subprocess.run(["tune-speed", *command], cwd=folder, check=True)
    for command, checkpoint, step in KILLED:
        kill_at(step, command, folder / "tune_speed_studies" / checkpoint, folder)
    pack(folder)


def kill_at(step: int, command: tuple[str, ...], checkpoint: Path, folder: Path) -> None:
    """Ends a search and all its processes by SIGKILL once the checkpoint has got that far."""
    search = psutil.Popen(["tune-speed", *command], cwd=folder)
    while not (checkpoint.exists() and step_of(checkpoint) >= step):
        assert search.poll() is None, "it ended too soon"
        time.sleep(0.002)
    for process in (*search.children(recursive=True), search):
        process.kill()
    search.wait()


def step_of(checkpoint: Path) -> int:
    """Returns the optimizer step in a checkpoint's header."""
    return int(re.search(rb'"step":\s*(\d+)', checkpoint.read_bytes()[:100_000])[1])


def pack(folder: Path) -> None:
    """Keeps studies as they are, and MLflow's store as one archive."""
    studies = HERE / "studies"
    shutil.rmtree(studies, ignore_errors=True)
    # The ballast is only there to be let go when the disk is full.
    leave_out = shutil.ignore_patterns(".ballast", "*.png")
    shutil.copytree(folder / "tune_speed_studies", studies, ignore=leave_out)
    (HERE / "exported").mkdir(exist_ok=True)
    for name in ("best.yaml", "shown.yaml"):
        shutil.copy(folder / name, HERE / "exported")
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        database.execute("VACUUM")
    with tarfile.open(HERE / "mlflow.tar.gz", "w:gz") as archive:
        for name in ("mlflow.db", "mlartifacts"):
            archive.add(folder / name, name, filter=nobodys)


def nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Returns an archive's entry without its owner."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(Path(sys.argv[1]))

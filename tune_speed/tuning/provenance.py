"""Machine, code and model of a certificate, described in the process that runs the trials."""

import hashlib
import os
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune_speed.core.records import Record
from tune_speed.core.redact import redact
from tune_speed.core.version import __version__
from tune_speed.runtime.git import run_git
from tune_speed.runtime.hardware import SystemFacts
from tune_speed.training.trial import SpecBase, TrialSpec

if TYPE_CHECKING:
    import torch


class CodeFacts(Record):
    """Which program ran."""

    commit: str | None
    """Commit of the checkout that the package was imported from; None: not from a checkout."""
    is_dirty: bool | None
    """Whether the checkout differs from its commit; None: not known."""
    diff: str | None
    """The difference to the commit, then a line `untracked: name` for each untracked Python file;
    without secrets, cut at 200 kB. Empty if there is none, None if it is not known."""
    diff_sha256: str | None
    """SHA-256 of the same text before it was cut; None if it is not known."""
    source_sha256: str | None
    """SHA-256 over the package's Python files, names and contents; None if they cannot be read."""
    lock_sha256: str
    """SHA-256 over the sorted lines `name==version` of all installed packages."""


class Code(CodeFacts):
    """The program, in a certificate."""

    version: str
    """Version of this package."""
    config_hash: str
    """Hash over the resolved recipe and workload."""


PACKAGE = Path(__file__).parents[1]
MAX_DIFF_BYTES = 200_000
_SECRET_NAME = re.compile(r"passw|_pwd|secret|token|credential|api_?key|access_?key", re.I)
_MIN_SECRET_LENGTH = 8  # Shorter values occur in a text by chance.


class CodeState(CodeFacts):
    """The program at one moment."""

    lock: str
    """Sorted lines `name==version` of all installed packages, for a file next to certificates."""

    def section(self, *, config_hash: str) -> Code:
        """Returns what a certificate says of it; `config_hash` is over recipe and workload."""
        fields = self.model_dump(exclude={"lock"})
        return Code(version=__version__, config_hash=config_hash, **fields)


def code_state(package: Path = PACKAGE) -> CodeState:
    commit = _commit(package)
    diff = None if commit is None else _difference(package)
    lock = installed_packages()
    return CodeState(
        commit=commit,
        is_dirty=None if diff is None else bool(diff),
        diff=None if diff is None else diff.encode()[:MAX_DIFF_BYTES].decode(errors="ignore"),
        diff_sha256=None if diff is None else _sha256(diff),
        source_sha256=source_hash(package),
        lock=lock,
        lock_sha256=_sha256(lock),
    )


def installed_packages() -> str:
    """Returns the sorted lines `name==version` of all installed packages, names normalised."""
    lines = set()
    for distribution in metadata.distributions():
        # Half removed: its folder is there, its metadata is not.
        with suppress(OSError, KeyError, TypeError, ValueError, AttributeError):
            name, version = distribution.metadata["Name"], distribution.version
            if name and version:
                lines.add(f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}\n")
    return "".join(sorted(lines))


def source_hash(package: Path) -> str | None:
    """Returns SHA-256 over the Python files in `package`; None if there is none to be read."""
    files = sorted(package.rglob("*.py"), key=lambda file: file.relative_to(package).as_posix())
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        try:
            content = file.read_bytes()
        except OSError:
            return None
        # With its length, one file's end cannot be taken for the next one's beginning.
        name = file.relative_to(package).as_posix()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def hide_secrets(text: str) -> str:
    """Returns `text` without passwords in URIs and values of secret environment variables."""
    text = redact(text)
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET_LENGTH:
            text = text.replace(value, "***")
    return text


def _commit(package: Path) -> str | None:
    # A wheel installed below a checkout of another project does not belong to that.
    if run_git(package, "ls-files", "--error-unmatch", "--", "__init__.py") is None:
        return None
    return (run_git(package, "rev-parse", "--verify", "HEAD") or "").strip() or None


def _difference(package: Path) -> str | None:
    top = (run_git(package, "rev-parse", "--show-toplevel") or "").rstrip("\n")
    if not top:
        return None
    # The user's git settings may name external programs and colours.
    plain = ("--no-ext-diff", "--no-textconv", "--no-color")
    diff = run_git(Path(top), "diff", *plain, "HEAD", "--")
    names = run_git(Path(top), "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py")
    if diff is None or names is None:
        return None
    untracked = "".join(f"untracked: {name}\n" for name in sorted(names.split("\0")) if name)
    return hide_secrets(diff + untracked)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Surroundings(Record):
    """Facts that a record does not have; those of model and data are None for own functions."""

    machine: SystemFacts
    throttle_count: int | None
    """See `hardware.throttle_count`."""
    code: CodeState
    num_parameters: int | None = None
    """Parameters of the recipe's model."""
    flop_per_sample: float | None = None
    """Of surroundings that older versions described, whose runs have no `flop`."""
    dataset_checksum: str | None = None
    """Hash over the data set's images and labels."""
    max_lr: float | None = None
    """Learning rate of an optimizer step before the schedule's factors."""
    num_train: int | None = None
    """Samples of the training part."""


def describe(spec: SpecBase) -> Surroundings:
    # Late: a process that only reads such facts does without torch.
    from tune_speed.runtime.device import device_of
    from tune_speed.runtime.hardware import describe_system, throttle_count
    from tune_speed.training.worker import open_device

    device = open_device(spec.allotment)
    name = str(device_of(device, spec.devices))
    return Surroundings(
        machine=describe_system(device).model_copy(update={"device": name}),
        throttle_count=throttle_count(device),
        code=code_state(),
        **(_describe_model(spec, device) if isinstance(spec, TrialSpec) else {}),
    )


def _describe_model(spec: TrialSpec, device: "torch.device") -> dict[str, Any]:
    from tune_speed.data.cache import prepare
    from tune_speed.training.build import build_model
    from tune_speed.training.flops import num_parameters
    from tune_speed.training.objective import splits_of

    recipe, splits = spec.recipe, splits_of(spec)
    model = build_model(recipe, splits, seed=0, device=device)
    return {
        "num_parameters": num_parameters(model),
        "dataset_checksum": prepare(spec.workload.dataset).data_hash,
        "max_lr": recipe.optimizer.step_lr(recipe.samples_per_step),
        "num_train": len(splits.train.labels),
    }

"""The replications that come with the package."""

from importlib import resources
from pathlib import Path
from typing import Any

from tune_speed.core.errors import ConfigError
from tune_speed.study.file import is_file
from tune_speed.study.mistake import near_miss
from tune_speed.study.replication import ReplicationConfig, ScaleConfig
from tune_speed.study.yaml import read_yaml

FULL = "full"
Sections = tuple[ReplicationConfig, dict[str, ScaleConfig]]


def shipped_replications() -> dict[str, Path]:
    package = Path(str(resources.files("tune_speed")))
    # A wheel puts the folder into the package; in a checkout it is next to it.
    folders = [each / "search_spaces" / "replications" for each in (package, package.parent)]
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(name: str) -> Path:
    """Raises: ConfigError if no file, name or experiment's number is `name`, or several have it."""
    if is_file(name):
        return Path(name)
    shipped = shipped_replications()
    item = int(name) if name.isdecimal() else None
    items = {row["name"]: row["items"] for row in replication_listing()} if item else {}
    found = [each for each in shipped if each == name or item in items.get(each, ())]
    if len(found) == 1:
        return shipped[found[0]]
    must = "must be the name of a replication, the number of its experiment, or a file"
    known = sorted({number for own in items.values() for number in own}) if items else shipped
    hint = near_miss(name, shipped) or f"There are {', '.join(map(str, known)) or 'none'}."
    if found:
        hint = f"Several are of experiment {name}: {', '.join(found)}."
    raise ConfigError.of("", must, given=name, hint=hint)


def replication_listing() -> list[dict[str, Any]]:
    """Raises: ConfigError for a file that is not YAML, or is no replication."""
    found = {name: sections(path) for name, path in shipped_replications().items()}
    rows = [
        {
            "name": name,
            "items": sorted(replication.items),
            **replication.model_dump(include={"title", "question", "source"}),
            "parts": list(replication.parts),
            "profiles": list(scales),
        }
        for name, (replication, scales) in found.items()
    ]
    return sorted(rows, key=lambda row: (not row["items"], row["items"], row["name"]))


def sections(path: Path) -> Sections:
    """Returns the experiment, and its profiles by name. Raises: ConfigError for other files."""
    tree: Any = read_yaml(path).tree
    try:
        smaller = {name: ScaleConfig(**fields) for name, fields in tree.get("scale", {}).items()}
        scales = {FULL: ScaleConfig(about="As in the source."), **smaller}
        return ReplicationConfig.model_validate(tree.get("replication")), scales
    except (AttributeError, TypeError, ValueError) as error:
        must = f"must be given in the file of a replication, without mistakes: {error}"
        hint = f"For any other recipe: `tune-speed ablate {path}`."
        raise ConfigError.of("replication", must, hint=hint, file=str(path)) from error

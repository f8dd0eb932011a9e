"""Whether the names in a store are those of the glossary."""

import re
from collections.abc import Iterable


def undocumented(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Returns those of `names` that fit none of `known`, in which `<…>` stands for anything."""
    patterns = [re.sub(r"<[^>]*>", ".+", re.escape(name)) for name in known]
    whole = re.compile(f"(?:{'|'.join(patterns)})(?:/seed_\\d+)?")
    return [name for name in names if whole.fullmatch(name) is None]

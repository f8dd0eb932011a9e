"""What holds for every configuration: it can be written, read back and explained."""

from tune_speed.core.config import Component, Config
from tune_speed.core.descriptions import descriptions
from tune_speed.testing.entry import Entry

TYPES = "Take types that JSON has: numbers, text, true and false, lists, and Config classes."


def config_round_trips_through_json(entry: Entry[Config]) -> None:
    """Records and caches keep configurations as JSON."""
    config = entry.config()
    with entry.working("the configuration must be written to JSON and read", fix=TYPES):
        back = entry.kind.model_validate_json(config.model_dump_json())
    entry.require(
        back == config,
        "the configuration must be the same when it is read back from JSON",
        seen=f"{config!r} came back as {back!r}",
        fix=f"{TYPES} A validator must not change what it has accepted before.",
    )


def config_round_trips_as_written_in_yaml(entry: Entry[Config]) -> None:
    """Recipes name an entry and give its fields; an exported recipe has every field."""
    config = entry.config()
    component = Component({entry.name: entry.kind}, tag=entry.tag)
    fix = f"{TYPES} YAML has lists and no tuples: a tuple needs a validator that takes a list."
    with entry.working("an exported recipe must be readable again", fix=fix):
        _, fields = component.split(component.join(config))
        back = entry.kind(**fields)
    entry.require(
        back == config,
        "the configuration must be the same when it is read back from a recipe",
        seen=f"{config!r} came back as {back!r}",
        fix=fix,
    )


def class_and_every_field_are_documented(entry: Entry[Config]) -> None:
    """The docstrings are what `tune-speed list` and `tune-speed schema` print."""
    text = (entry.kind.__dict__.get("__doc__") or "").strip()
    entry.require(
        bool(text),
        "the class must have a docstring",
        seen="it has none",
        fix='Write one line below `class …`, such as """What it is.""", and its source.',
    )
    bare = sorted(entry.kind.model_fields.keys() - descriptions(entry.kind).keys())
    entry.require(
        not bare,
        "every field must be documented",
        seen=f"there is no docstring below {', '.join(f'`{name}`' for name in bare)}",
        fix='Write below each, in """ """, what it means, its unit and its range.',
    )

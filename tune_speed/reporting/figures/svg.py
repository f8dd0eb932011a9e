"""From matplotlib's SVG to one for a page: its theme, its fonts, links to its rows, few bytes."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import NamedTuple
from urllib.parse import quote

from tune_speed.reporting.figures.canvas import MARK, SENTINELS, Canvas, Mark

SVG = "http://www.w3.org/2000/svg"
_COLOURS = {colour: f"var(--{role})" for role, colour in SENTINELS.items()}
_DECIMALS = re.compile(r"-?\d*\.\d+(?:e-?\d+)?")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_FONT = re.compile(r"font: (?:(\w+) )?([\d.]+)px [^;]*")
_NO_TURN = re.compile(r"rotate\(-?0 [^)]*\)")


def as_svg(
    canvas: Canvas, *, id_prefix: str, alt: str, anchors: Mapping[str, str] | None = None
) -> str:
    """Returns the figure as an `<svg>` element for the inside of a page.

    It refers to nothing outside: the page's fonts and custom properties (`--ink` …) take the place
    of sentinels. `alt` says what it shows; `anchors` has ids of the trials' rows by run id, without
    one there is no link. None: each row's id is `trial-` and the trial's id.
    """
    out = BytesIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    canvas.figure.savefig(out, format="svg", metadata=no_metadata)
    drawn = ET.fromstring(out.getvalue())
    rows = [
        f"trial-{mark.trial_id}" if anchors is None else anchors.get(mark.run_id)
        for mark in canvas.marks
    ]
    finished = _Finisher(canvas.marks, rows, _names(drawn, id_prefix)).finished(drawn)
    # A group keeps its links; an image would hide them from assistive technology.
    finished.attrib = {
        "xmlns": SVG,
        "viewBox": drawn.attrib["viewBox"],
        "width": "100%",
        "role": "group" if any(rows) else "img",
        "aria-label": alt,
        "class": "figure",
    }
    return ET.tostring(finished, encoding="unicode")


def _names(drawn: ET.Element, id_prefix: str) -> dict[str, str]:
    used = dict.fromkeys(
        name
        for element in drawn.iter()
        for key, value in element.attrib.items()
        for name in ([value[1:]] if value.startswith("#") else _REFERENCE.findall(value))
        if _local(key) in ("href", "clip-path")
    )
    return {name: f"{id_prefix}-{number}" for number, name in enumerate(used)}


class _Finisher(NamedTuple):
    """Copies a tree, element by element, without what a page does not need."""

    marks: Sequence[Mark]
    rows: Sequence[str | None]
    names: Mapping[str, str]

    def finished(self, element: ET.Element, *, is_defined: bool = False) -> ET.Element:
        name = _local(element.tag)
        is_defined = is_defined or name == "defs"
        copy = ET.Element(name, self._attributes(element, is_defined=is_defined))
        copy.text = element.text if name == "text" else None
        if name == "a":
            (value,) = (value for key, value in element.attrib.items() if _local(key) == "href")
            title = ET.Element("title")
            title.text = self.marks[int(value.removeprefix(MARK))].text
            copy.append(title)
            copy.tag = "a" if "href" in copy.attrib else "g"
        for child in element:
            if _local(child.tag) in ("metadata", "style"):
                continue
            new = self.finished(child, is_defined=is_defined)
            if new.tag == "g" and not new.attrib:
                copy.extend(list(new))
            # A background without a colour and empty definitions draw nothing.
            elif not (
                (new.tag == "path" and new.get("style") == "fill:none")
                or (new.tag == "defs" and len(new) == 0)
            ):
                copy.append(new)
        _hoist_style(copy)
        return copy

    def _attributes(self, element: ET.Element, *, is_defined: bool) -> dict[str, str]:
        new: dict[str, str] = {}
        for key, value in element.attrib.items():
            match _local(key):
                case "id":
                    new |= {"id": self.names[value]} if value in self.names else {}
                case "href":
                    new |= self._reference(value)
                case "clip-path":
                    new["clip-path"] = _REFERENCE.sub(lambda m: f"url(#{self.names[m[1]]})", value)
                case "style":
                    new |= _style(value)
                case "d" | "x" | "y" | "width" | "height" | "points" as name:
                    new[name] = _rounded(value, 2 if is_defined else 1)
                case "transform":
                    text = _rounded(_NO_TURN.sub("", value), 2).strip()
                    new |= {"transform": text} if text else {}
                case "target" | "type":
                    pass
                case name:
                    new[name] = value
        return new

    def _reference(self, value: str) -> dict[str, str]:
        if not value.startswith(MARK):
            return {"href": f"#{self.names[value[1:]]}"}
        number = int(value.removeprefix(MARK))
        row = self.rows[number]
        if row is None:
            return {"class": "mark"}
        # The table below holds every trial; the keyboard needs only the way to the leader's row.
        stop = {} if self.marks[number].is_leader else {"tabindex": "-1"}
        # A trial's id comes from the store and may hold any character.
        return {"href": f"#{quote(row, safe='')}", **stop}


def _hoist_style(group: ET.Element) -> None:
    inner = [e for e in group.iter("use")]
    styles = {e.attrib.get("style", "") for e in inner}
    if group.tag not in ("g", "a") or len(inner) < 2 or len(styles) != 1 or group.get("style"):
        return
    others = {e.tag for e in group.iter()} - {"g", "a", "use", "title", "defs", "path"}
    is_alone = all(child.tag in ("a", "use", "defs") for child in group)
    # A group's opacity applies to the group as one picture, not to each of its points.
    if others or not is_alone or "opacity" in (style := styles.pop()) or not style:
        return
    group.set("style", style)
    for element in inner:
        element.attrib.pop("style", None)


def _style(value: str) -> dict[str, str]:
    weight_and_size = _FONT.sub(
        lambda m: (f"font-weight: {m[1]}; " if m[1] else "") + f"font-size: {m[2]}px", value
    )
    parts = [part.strip() for part in weight_and_size.split(";")]
    # Without a family a text takes the page's font.
    kept = [part for part in parts if part and not part.startswith("font-family")]
    text = ";".join(part.replace(": ", ":") for part in kept)
    for colour, variable in _COLOURS.items():
        text = text.replace(colour, variable)
    return {"style": text} if text else {}


def _rounded(text: str, digits: int) -> str:
    flat = " ".join(text.split())
    return _DECIMALS.sub(lambda match: f"{round(float(match[0]), digits):g}", flat)


def _local(name: str) -> str:
    return name.rpartition("}")[2]

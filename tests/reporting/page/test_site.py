import re
from base64 import b64encode
from hashlib import sha256
from html import unescape

import pytest
from helpers.reporting.pages import page_of

from tune_speed.reporting.figures import canvas
from tune_speed.reporting.page import site


@pytest.fixture(scope="module")
def page() -> str:
    return page_of([])


def test_policy_names_the_one_script_by_its_hash_and_fetches_nothing(page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    parts = unescape(policy).split("; ")
    assert parts[:2] == ["default-src 'none'", f"script-src 'sha256-{digest}'"]
    assert "http" not in policy and "unsafe-eval" not in policy


def test_policy_stands_before_anything_that_could_run(page: str) -> None:
    assert page.index("Content-Security-Policy") < page.index("<style") < page.index("<script")


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [{**canvas.LIGHT, **site.LIGHT}, {**canvas.DARK, **site.DARK}])
def test_text_has_the_contrast_that_wcag_aa_asks_for(palette: dict[str, str]) -> None:
    for text in ("ink", "muted", "accent", "good", "warn", "bad"):
        for ground in ("surface", "page"):
            light, dark = sorted(
                (luminance(palette[text]), luminance(palette[ground])), reverse=True
            )
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)
    for text in ("ink", "muted", "accent"):
        light, dark = sorted((luminance(palette[text]), luminance(palette["mark"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, text

"""Contrast of every pair of colours in both themes, computed from `tokens.css` by WCAG 2."""

import re
from pathlib import Path

import pytest

TOKENS = (Path(__file__).parents[3] / "control/console/static/tokens.css").read_text()
PAIRS = re.findall(r"--([a-z0-9-]+):light-dark\((#[0-9A-F]{6}),(#[0-9A-F]{6})\)", TOKENS)
GROUNDS = ("bg", "surface", "lead", "sunken", "hover", "selected")
FAMILIES = ("ahead", "moving", "trouble", "good", "bad", "undone")
TEXT, MARK = 4.5, 3.0


THEMES = {"light": {name: light for name, light, _ in PAIRS}, "dark": {name: dark for name, _, dark in PAIRS}}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", THEMES)
def test_text_has_contrast_on_every_ground(name: str) -> None:
    colours = THEMES[name]
    texts = ("ink", "ink-2", "ink-3", *(f"{family}-text" for family in FAMILIES))
    low = {(text, ground): contrast(colours[text], colours[ground]) for text in texts for ground in GROUNDS}
    low |= {
        (f"{family}-text", "tint"): contrast(colours[f"{family}-text"], colours[f"{family}-tint"])
        for family in FAMILIES
    }
    low |= {("ink", family): contrast(colours["ink"], colours[f"{family}-tint"]) for family in FAMILIES}
    low |= {("inverse", solid): contrast(colours["inverse"], colours[solid]) for solid in ("ink", "bad", "moving")}
    assert not {pair: value for pair, value in low.items() if value < TEXT}


@pytest.mark.parametrize("name", THEMES)
def test_marks_have_contrast_on_every_ground(name: str) -> None:
    colours = THEMES[name]
    marks = ("quiet", *FAMILIES)
    low = {(mark, ground): contrast(colours[mark], colours[ground]) for mark in marks for ground in GROUNDS}
    low |= {("edge", ground): contrast(colours["edge"], colours[ground]) for ground in GROUNDS if ground != "selected"}
    low |= {(family, "tint"): contrast(colours[family], colours[f"{family}-tint"]) for family in FAMILIES}
    assert not {pair: value for pair, value in low.items() if value < MARK}

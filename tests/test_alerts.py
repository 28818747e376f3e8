"""The alert rules use exported metrics, and docs/telemetry.md lists all of them."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import yaml

from tests.strict_types import ROOT
from tidewheel.process.metrics import METRICS, Kind

FILE = ROOT / "compose" / "alerts.yml"
PAGE = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")

# The words of an expression besides metrics and their labels.
# Source: Prometheus documentation, "Querying basics", "Operators", "Functions".
FUNCTIONS = {"abs", "absent", "histogram_quantile", "increase", "max", "max_over_time", "min", "rate", "sum"}
WORDS = {"by", "instance", "le"}  # Prometheus itself adds the instance
LABELS = {label for metric in METRICS for label in metric.labels}
SUFFIXES = {Kind.COUNTER: ("_total",), Kind.GAUGE: ("",), Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
SERIES = {f"tidewheel_{metric.name}{suffix}": metric for metric in METRICS for suffix in SUFFIXES[metric.kind]}

TOKENS = re.compile(
    r"""\s*(?:(?P<word>[a-z_]+)|(?P<number>\d+(?:\.\d+)?)|(?P<range>\[\d+[smhd]\])
          |(?P<matcher>\{[^}]*\})|(?P<sign>[-+*/(),<>]))""",
    re.VERBOSE,
)


def rules() -> list[dict[str, Any]]:
    """The alerts, with the expressions of the ratios that they name."""
    ratios, alerts = (group["rules"] for group in yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"])
    for alert in alerts:
        for ratio in ratios:
            alert["expr"] = alert["expr"].replace(ratio["record"], f"({ratio['expr']})")
    return alerts


def tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expression.rstrip()):
        found = TOKENS.match(expression, at)
        assert found is not None, f"not understood: {expression[at:]}"
        yield str(found.lastgroup), str(found[str(found.lastgroup)])
        at = found.end()


def series_in(text: str) -> set[str]:
    return set(re.findall(r"tidewheel_[a-z_]+", text))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_rule_uses_exported_metrics_and_labels(rule: dict[str, Any]) -> None:
    read = list(tokens(rule["expr"]))
    words = {text for kind, text in read if kind == "word"}
    assert words & set(SERIES)
    assert words <= set(SERIES) | FUNCTIONS | WORDS | LABELS
    for (_, before), (kind, text) in pairwise(read):
        if kind == "matcher":
            named = re.findall(r'([a-z_]+)=~?"([a-z_.0-9|]+)"', text)
            assert {label for label, _ in named} <= {*SERIES[before].labels, "le"}, text
        if kind == "range" and f"max_over_time({before}{text})" not in rule["expr"]:  # the range of a gauge
            assert all(SERIES[name].kind is not Kind.GAUGE for name in {before} & set(SERIES)), text


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_annotations_use_labels_of_the_rule(rule: dict[str, Any]) -> None:
    text = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.([a-z_]+)", text)) <= LABELS | {"instance"}
    assert text.count("{{") == text.count("}}")


def test_page_lists_the_rules_and_their_metrics() -> None:
    section = PAGE.split("## Alerts", 1)[1].split("\n## ", 1)[0]
    rows = {found[1]: found[0] for found in re.findall(r"^(\|.*\| `(Tidewheel[A-Za-z]+)` \|)$", section, re.MULTILINE)}
    assert set(rows) == {rule["alert"] for rule in rules()}
    for rule in rules():
        named = {name.removesuffix("_bucket") for name in series_in(rule["expr"])}
        assert named == series_in(rows[rule["alert"]]), rule["alert"]

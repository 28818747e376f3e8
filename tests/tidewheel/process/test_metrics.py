"""The table of metrics and the code agree: the code writes every row, with its labels."""

import ast
import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest

from tests.strict_types import LINKED
from tests.tidewheel.postgres.test_statements import real_files
from tidewheel.process.metrics import METRICS, Kind, Metrics
from tidewheel.runs import FINAL

TABLE = {row.name: row for row in METRICS}
WRITES = {"count": Kind.COUNTER, "set": Kind.GAUGE, "observe": Kind.HISTOGRAM}


def written() -> Iterator[tuple[str, str, int]]:
    """Every (way, name, number of labels) in the product's code."""
    for folder in ("tidewheel", *LINKED):
        for path in real_files(folder, "*.py"):
            text = path.read_text(encoding="utf-8")
            nodes = list(ast.walk(ast.parse(text))) if "metrics" in text else []
            counting = {
                node.name
                for node in nodes
                if isinstance(node, ast.FunctionDef) and node.args.args and node.args.args[0].arg == "metric"
            }
            for node in nodes:
                match node:
                    case ast.Call(func=ast.Name(id=own), args=[ast.Constant(value=str(name)), *_]) if own in counting:
                        yield "count", name, 0
                    case (
                        ast.Call(
                            func=ast.Attribute(value=ast.Name(id="metrics"), attr=way),
                            args=[ast.Constant(value=str(name)), *rest],
                        )
                        | ast.Call(  # as `at_commit` takes it
                            func=ast.Name(id="partial"),
                            args=[
                                ast.Attribute(value=ast.Name(id="metrics"), attr=way),
                                ast.Constant(value=str(name)),
                                *rest,
                            ],
                        )
                    ):
                        yield way, name, max(len(rest) - 1, 0)
                    case _:
                        pass


def test_code_writes_exactly_the_listed_metrics_with_their_labels() -> None:
    listed = {(name, row.kind, len(row.labels)) for name, row in TABLE.items()}
    assert {(name, WRITES[way], labels) for way, name, labels in written()} == listed


def test_each_metric_has_a_name_of_its_own_and_a_description() -> None:
    assert len(TABLE) == len(METRICS)
    for row in METRICS:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", row.name), row.name
        assert row.name.endswith("_seconds") == (row.unit == "seconds"), row.name  # base units alone
        assert row.name.endswith("_ratio") == (row.unit == "ratio"), row.name
        assert row.meaning, row.name
        assert not row.meaning.endswith("."), row.name


def test_exported_metrics_equal_the_written_ones() -> None:
    registry = CollectorRegistry()
    own = Metrics(registry)
    own.count("claims", 2, "won", "sweep")
    own.count("leases_lost")
    own.set("slots_busy", 3)
    own.observe("lateness_seconds", [-5, 0.02, 7200], "written", "batch")
    text = generate_latest(registry).decode()
    assert 'tidewheel_claims_total{result="won",source="sweep"} 2.0' in text
    assert "tidewheel_leases_lost_total 1.0" in text
    assert "tidewheel_slots_busy 3.0" in text
    series = 'tidewheel_lateness_seconds{}{{lane="batch",{}stage="written"}} {}'
    for bound, count in (("0.005", 1), ("0.025", 2), ("3600.0", 2), ("+Inf", 3)):
        assert series.format("_bucket", f'le="{bound}",', f"{count}.0") in text
    assert series.format("_sum", "", "7200.02") in text


def test_ended_runs_are_counted_from_zero_so_that_a_process_first_failures_have_a_rate() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    assert {registry.get_sample_value("tidewheel_runs_ended_total", {"state": state}) for state in FINAL} == {0.0}

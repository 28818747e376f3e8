"""docs/scale.md has the routes of all statements as they are."""

import re

import pytest

from tests.docs import routes
from tests.docs.routes import Route, route_of

NUMBER = re.compile(r"\b\d+\b")


def test_page_has_the_routes_of_the_packaged_statements() -> None:
    """A new statement may change a count; the page must follow before it is off by a tenth."""
    text = routes.PAGE.read_text(encoding="utf-8")
    shown = text.partition(routes.BEGIN)[2].partition(routes.END)[0].splitlines()
    for page, now in zip(shown, routes.table().splitlines(), strict=True):
        assert NUMBER.sub("", page) == NUMBER.sub("", now), "run: python -m tests.docs.routes"
        for old, new in zip(NUMBER.findall(page), NUMBER.findall(now), strict=True):
            assert abs(int(new) - int(old)) <= 10 + int(old) // 10, "run: python -m tests.docs.routes"


@pytest.mark.parametrize(
    ("statement", "route"),
    [
        ("SELECT FROM timers WHERE shard = $1 AND due_at <= $2", Route.SHARD),
        ("SELECT FROM job_runs WHERE run_id = $1::uuid", Route.ID),
        ("SELECT FROM job_runs r JOIN attempts a ON a.run_id = r.run_id WHERE r.run_id = $1", Route.ID),
        ("SELECT FROM unnest($1::uuid[]) AS g (run_id) JOIN job_runs AS r USING (run_id)", Route.BATCH),
        ("WITH s AS (SELECT $1 AS run_id) DELETE FROM job_runs r USING s WHERE r.run_id = s.run_id", Route.BATCH),
        ("SELECT FROM job_runs WHERE shard = $1 OR tenant = $2", Route.ALL),
        ("SELECT FROM job_runs WHERE NOT shard = $1", Route.ALL),
        ("SELECT FROM jobs WHERE job_id IN (SELECT job_id FROM freezes)", Route.BATCH),
        ("INSERT INTO requests (tenant, request_id) VALUES ($1, $2)", Route.SHARD),
        ("UPDATE job_runs AS r SET state = 'queued' FROM found AS f WHERE r.ctid = f.at", Route.ADDRESS),
        ("SELECT FROM settings WHERE name = $1", Route.NONE),
    ],
)  # fmt: skip
def test_a_statement_has_the_route_of_its_conditions(statement: str, route: Route) -> None:
    assert route_of(statement) is route

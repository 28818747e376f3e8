"""The pages of the console in one seeded state, without what differs between two runs."""

import re
from collections.abc import Iterable, Mapping, Sequence

from starlette.routing import Match, Route

from tests.control.api.answering import ApiClient
from tests.control.console.pages import HTML, console
from tests.control.console.seeded import Ids, paths
from tests.fixtures.database import Database
from tidewheel.audit import process_user
from tidewheel.control.api.app import make_app
from tidewheel.control.api.workers import Pools
from tidewheel.ids import job_id
from tidewheel.process.service import Shutdown
from tidewheel.settings.services import ApiSettings

_SELECTED = "/selected-jobs/{}?" + "&".join(f"job={job_id('default', key)}" for key in ("hourly", "slow", "paused"))
_FURTHER: Mapping[str, str] = {
    "bulk-cancel": "/bulk/redrive/{redrive}/cancel",
    "bulk-resume": "/bulk/redrive/{redrive}/resume",
    "jobs-pause": _SELECTED.format("pause"),
    "jobs-resume": _SELECTED.format("resume"),
    "run-lines": "/runs/{hostile}/lines?attempt=1",
    "run-log": "/runs/{hostile}/log?attempt=1",
    "runs-retry": "/runs/retry?run={failed}&run={succeeded}",
    "tenant-undelete": "/admin/tenants/acme/undelete",
    "thaw": "/thaw?scope=tenant&tenant=paused",
    "workflow-pause": "/workflows/{workflow}/pause",
}
"""Pages that no browser test opens, by the names of their files."""

_REPEATING: Mapping[str, str] = {
    "job-edit": "job-new", "job-edit-hostile": "job-new", "runs-failed": "runs", "runs-refused": "runs",
}  # fmt: skip
"""Pages with the form of another page, of which they keep only the fields that differ."""
_FIELD = re.compile(r'<div class="field(?: [^"]*)?">\n.*?</div></div>|<label(?! for)[^>]*>.*?</label>', re.DOTALL)
_SIGN_IN = "/sign-in"
_NO_PAGES = frozenset({"/live", "/static/{digest}/{name}"})
_WHOLE = "overview"  # the one file with the frame that all pages have
_FRAME = re.compile(r".*(<title>.*?</title>\n).*?(<main\b.*</main>\n).*", re.DOTALL)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ELEMENT = re.compile(r">(?=<(?!(?:a|bdi|code|span|time|use)\b)\w)")  # but for those within a line
_RULES: Sequence[tuple[str, str]] = (
    (r'(name="token" value=")[0-9a-f]{64}', r"\1TOKEN"),
    (r"/static/[0-9a-f]{12}/", "/static/DIGEST/"),
    (r"([?;]cursor=)[^\"&]+", r"\1CURSOR"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\b[0-9a-f]{8}…[0-9a-f]{4}\b", "ID"),
    (r">(Backfill|Retry of dead letters) [0-9a-f]{8}<", r">\1 ID<"),
    (rf"(actor=|<bdi>|\bby ){re.escape(process_user() or 'uid')}\b", r"\1USER"),
)


def page_texts(client: ApiClient, ids: Ids) -> Mapping[str, str]:
    """Return the HTML of each page by the name of its file; a page without ids needs no name."""
    every = {**paths(ids), **{name: path.format_map(ids) for name, path in _FURTHER.items()}}
    others = _routes_without(client.database, [*every.values(), _SIGN_IN]) - _NO_PAGES
    missing = {path for path in others if "{" in path}
    every |= {path[1:].replace("/", "-"): path for path in others - missing}
    assert not missing, f"give a path of {missing} a name in `PAGES` of tests/control/console/seeded.py"
    with console(client.database) as stranger:
        found = {"sign-in": _text(stranger, _SIGN_IN, whole=False)}
    found |= {name: _text(client, path, whole=name == _WHOLE) for name, path in every.items()}
    found |= {name: _without_fields_of(found[form], found[name]) for name, form in _REPEATING.items()}
    return {f"pages/{name}.html": text for name, text in found.items()}


def _without_fields_of(form: str, text: str) -> str:
    kept = _FIELD.sub(lambda field: "" if field[0] in form else field[0], text)
    return "\n".join([*filter(None, kept.split("\n")), ""])


def _routes_without(database: Database, pages: Iterable[str]) -> set[str]:
    """Return the routes for browsers that answer none of these paths."""
    stop = Shutdown()
    pools = Pools(database.url, database.installation, threads=1, stop=stop)
    app = make_app(ApiSettings.load(database_url=database.url), database.installation, pools, stop=stop)
    pools.close()
    routes = [each for each in app.routes if isinstance(each, Route) and not each.include_in_schema]
    routes = [each for each in routes if "GET" in (each.methods or ())]

    def answering(path: str) -> str | None:
        scope: dict[str, object] = {"type": "http", "method": "GET", "path": path.partition("?")[0], "headers": []}
        return next((each.path for each in routes if each.matches(scope)[0] is Match.FULL), None)

    return {each.path for each in routes} - {answering(path) for path in pages}


def _text(client: ApiClient, path: str, *, whole: bool) -> str:
    """Return the content of a page, a line for each element."""
    answer = client.get(path, headers=HTML)
    text, names = answer.text, dict[str, str]()
    if not whole:
        text = _FRAME.sub(r"\1\2", text)
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    text = _UUID.sub(lambda found: names.setdefault(found[0], f"UUID-{len(names) + 1}"), text)
    lines = (line.strip() for line in _ELEMENT.sub(">\n", text).splitlines())
    return "\n".join([f"<!-- {answer.status_code} -->", *filter(None, lines), ""])

"""The pages of batches: the list, one with its runs and callbacks, and what one may do about it."""

import re
from http import HTTPStatus
from uuid import UUID, uuid4

from tests.control.api.answering import ApiClient
from tests.control.console.pages import assert_has, done, every_row, next_page, posted, shown, signed_console
from tests.fixtures.acts import submission
from tests.fixtures.database import Database
from tests.transitions.graphs import after, end_some, never, play, put, workflow
from tests.transitions.test_workflows import run_of
from tidewheel.runs import RunState

_SCRIPT = "<script>alert(1)</script>"
_RUNS = (
    {"ref": _SCRIPT, "key": "bad"},
    {"ref": "b", "key": "good"},
    {"ref": "report", "key": "good", "after": [_SCRIPT]},
)
_ON = {name: {"key": "after"} for name in ("failed", "succeeded", "finished")}


def failing(key: str) -> RunState:
    return RunState.FAILED if key == "bad" else RunState.SUCCEEDED


def submitted(database: Database, *, is_open: bool = False) -> UUID:
    """Submit a batch of three runs, with a job for each of its ends."""
    database.apply_batch(*(submission(key, retry={"max_attempts": 1}) for key in ("bad", "good", "after")))
    return database.client.batches.submit(_RUNS, on=_ON, open=is_open)


def words_of(page: str, begin: str, end: str) -> str:
    """Return the text of a part of a page."""
    part = page.partition(begin)[2].partition(end)[0]
    assert part, page
    return " ".join(re.sub(r"<[^>]+>", " ", part).split())


def callbacks(page: str) -> str:
    return words_of(page, "<h2>Callbacks</h2>", "</section>")


def test_page_counts_runs_by_state_and_shows_those_that_failed_first(pages: ApiClient) -> None:
    batch = submitted(pages.database)
    path = f"/batches/{batch}"
    for each in pages.database.client.batches.get(batch).runs:
        shown(pages, f"/runs?job={each.key}", '<td class="less">batch</td>')
        shown(pages, f"/runs/{each.run_id}", "cause <b>batch</b>")
    page = shown(pages, path, "0 of 3 runs ended.", 'aria-label="3 not ended"')
    assert callbacks(page).count("after") == 3
    assert "waits for 3 runs" in page
    play(pages.database, failing)
    page = shown(pages, path, 'aria-label="1 succeeded, 1 failed, 1 skipped"')
    failed = run_of(pages.database, "bad")
    assert re.findall(r'<tr data-key="([^"]+)"', page) == [str(failed)]
    assert _SCRIPT not in page
    assert re.findall(r"<tr data-key", shown(pages, f"{path}?show=all")) == ["<tr data-key"] * 3
    assert f'href="{path}"' in shown(pages, f"/runs/{failed}"), "its run leads to it"
    assert f'href="{path}"' in shown(pages, "/batches")
    for unknown in (f"/batches/{uuid4()}", "/batches/none", f"/workflows/{batch}"):
        assert pages.get(unknown).status_code == HTTPStatus.NOT_FOUND, unknown


def test_callback_leads_to_the_run_of_its_trigger(pages: ApiClient) -> None:
    batch = submitted(pages.database)
    play(pages.database, failing)
    text = callbacks(shown(pages, f"/batches/{batch}"))
    assert_has(text, "at the first failure after triggered", "when all have succeeded after not triggered")
    assert text.endswith("when all have ended after triggered")
    name = f"batch/{batch}/finished"
    [reply] = pages.database.apply_batch({"type": "job.trigger", "key": "after", "request_id": name})
    page = shown(pages, f"/batches/{batch}", f'<a href="/runs/{reply.run_id}"')
    assert callbacks(page).endswith("when all have ended after waiting")


def test_resume_runs_the_failed_part_again_and_counts_its_callbacks_anew(pages: ApiClient) -> None:
    batch = submitted(pages.database)
    play(pages.database, failing)
    shown(pages, f"/batches/{batch}/resume", "Retry 1 failed run of batch ", "the 1 that succeeded is kept.")
    assert done(posted(pages, f"/batches/{batch}/resume")) == f"/batches/{batch}"
    page = shown(pages, f"/batches/{batch}", "The batch is resumed.", "1 of 3 runs ended.", "resumed 1 time")
    assert "no run has failed" in callbacks(page)
    assert "Nothing would change." in shown(pages, f"/batches/{batch}/resume")
    play(pages.database)
    assert "All 3 runs succeeded." in shown(pages, f"/batches/{batch}")
    assert "Nothing would change." in shown(pages, f"/batches/{batch}/resume")


def test_open_batch_is_closed_and_cancelled(pages: ApiClient) -> None:
    batch = submitted(pages.database, is_open=True)
    end_some(pages.database, lambda _: RunState.SUCCEEDED, never(), 1)
    assert "0 of" in shown(pages, f"/batches/{batch}", "Close…")
    assert done(posted(pages, f"/batches/{batch}/close")) == f"/batches/{batch}"
    shown(pages, f"/batches/{batch}", "The batch is closed.", without="Close…")
    assert "takes no further runs" in shown(pages, f"/batches/{batch}/close")
    assert done(posted(pages, f"/batches/{batch}/cancel", reason="wrong prices")) == f"/batches/{batch}"
    page = shown(pages, f"/batches/{batch}")
    assert workflow(pages.database, batch)[0] == "cancelling"
    assert_has(page, "wrong prices", without=f'href="/batches/{batch}/cancel"')
    assert "Nothing would change." in shown(pages, f"/batches/{batch}/cancel")


def test_list_and_runs_have_pages(pages: ApiClient) -> None:
    batches = [submitted(pages.database) for _ in range(3)]
    assert every_row(pages, "/batches?limit=2", r'<tr data-key="([^"]+)"') == [
        str(each) for each in sorted(batches, reverse=True)
    ]
    put(pages.database, {"a": [], "b": after("a")})
    root = pages.database.trigger("a")
    play(pages.database)
    assert str(root) not in shown(pages, "/batches"), "a workflow is no batch"
    many = pages.database.client.batches.submit([{"ref": f"r{at:03}", "key": "bad"} for at in range(230)])
    assert len(every_row(pages, f"/batches/{many}", "<tr data-key")) == 230
    play(pages.database, failing)
    page = shown(pages, f"/batches/{many}")
    assert page.count("<tr data-key") == 200
    following = next_page(page)
    assert following
    assert "show=failed" in following
    assert shown(pages, following).count("<tr data-key") == 30


def test_keys_see_their_tenant_and_the_actions_of_their_scopes(database: Database) -> None:
    batch = submitted(database, is_open=True)
    for scopes, actions in ((("read",), []), (("read", "write"), ["close"]), (("read", "operate"), ["cancel"])):
        with signed_console(database, *scopes) as client:
            page = shown(client, f"/batches/{batch}")
            assert re.findall(rf'href="/batches/{batch}/(\w+)"', page) == actions
            answers = {verb: client.get(f"/batches/{batch}/{verb}").status_code for verb in ("close", "cancel")}
            assert [verb for verb, status in answers.items() if status == HTTPStatus.OK] == actions
    database.client.tenants.create("acme")
    with signed_console(database, "read", "write", "operate", tenant="acme") as client:
        assert str(batch) not in shown(client, "/batches")
        for path in (f"/batches/{batch}", *(f"/batches/{batch}/{verb}" for verb in ("close", "resume", "cancel"))):
            assert client.get(path).status_code == HTTPStatus.NOT_FOUND, path

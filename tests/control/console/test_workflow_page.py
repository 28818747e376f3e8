"""The page of a workflow's occurrence: its graph, its list, many parts, and what one may do about it."""

import re
from http import HTTPStatus
from uuid import UUID, uuid4

import pytest

from tests.control.api.answering import ApiClient
from tests.control.console.pages import assert_has, every_row, next_page, posted, shown
from tests.fixtures.database import Database
from tests.transitions.graphs import DIAMOND, after, drain_some, end_and_drain, end_some, never, play, put, workflow
from tests.transitions.test_workflows import run_of
from tidewheel.nouns.workflows.operations import Parent, WorkflowNode
from tidewheel.nouns.workflows.picture import FOLDED, picture_of
from tidewheel.runs import RunState

_SCRIPT = "<script>alert(1)</script>\u05d0"


def failing(key: str) -> RunState:
    return RunState.FAILED if key == "b" else RunState.SUCCEEDED


def played(database: Database) -> UUID:
    """Return an occurrence of the diamond whose part b failed."""
    put(database, DIAMOND)
    root = database.trigger("a")
    play(database, failing)
    return root


def newest_retry(database: Database) -> object:
    return database.value("SELECT run_id FROM job_runs WHERE cause = 'retry'")


def test_graph_and_list_have_every_part_and_the_run_of_a_part_links_to_them(pages: ApiClient) -> None:
    root = played(pages.database)
    page = shown(pages, f"/workflows/{root}", "A retry runs b again, then d if its conditions are met.")
    assert page.count('<g class="node') == 4
    assert page.count('<path class="edge') == 4
    assert page.count("unmet") == 1
    parts = re.findall(r'<li class="depth-(\d)"><span class="name"><a href="/runs/([^"]+)"><bdi>(\w)</bdi>', page)
    assert [(depth, key) for depth, _, key in parts] == [("0", "a"), ("1", "b"), ("1", "c"), ("2", "d")]
    assert f'href="/workflows/{root}"' in shown(pages, f"/runs/{parts[1][1]}")
    assert f'href="/workflows/{root}"' in shown(pages, f"/runs/{root}")
    place = shown(pages, f"/runs/{root}").partition("Place in the workflow")[2].partition("</section>")[0]
    words = re.sub(r"<[^>]+>", " ", place).split()
    assert words == ["Whole", "graph", "succeeded", "a", "failed", "b", "succeeded", "c"]
    last = shown(pages, f"/runs/{run_of(pages.database, 'd')}", '<ul aria-label="before it">')
    assert_has(last, "the parent b ended as failed, but the condition is success", without='<ul aria-label="after it">')
    pages.database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    for path in (f"/workflows/{uuid4()}", "/workflows/none", f"/workflows/{root}?tenant=acme"):
        assert pages.get(path).status_code == HTTPStatus.NOT_FOUND, path


def test_first_failure_of_a_workflow_has_its_error_in_the_first_line_and_at_its_node(pages: ApiClient) -> None:
    graph = {"a": [], "b": after("a"), "c": after("b"), "d": after("c"), "alarm": [("b", "failure")]}
    put(pages.database, graph | {"fine": [("a", "failure")]}, retry={"max_attempts": 1})
    root = pages.database.trigger("a")
    play(pages.database, failing, error_type="AccessDenied", error_message=f"no permission {_SCRIPT}\nat once")
    page = shown(pages, f"/workflows/{root}")
    lead = page.partition('aria-label="What matters now"')[2].partition("</section>")[0]
    text = " ".join(re.sub(r"<[^>]+>", "", lead.partition(">")[2]).split())
    assert text.startswith("b failed, so c, d did not run."), "alarm ran, and fine did not wait for b"
    assert f'href="/runs/{run_of(pages.database, "b")}"' in lead
    assert "AccessDenied: no permission &lt;script&gt;" in lead
    assert "at once" not in lead
    assert page.count("failed: AccessDenied") == 1
    row = shown(pages, "/workflows").partition("<tbody")[2].partition("</tr>")[0]
    assert 'aria-label="2 succeeded, 1 failed, 3 skipped"' in row
    assert " ".join(re.sub(r"<[^>]+>", "", row).split()).partition("b: ")[2].startswith("AccessDenied: no permission")


def test_trigger_of_a_root_names_the_jobs_that_follow_it(pages: ApiClient) -> None:
    put(pages.database, DIAMOND)
    assert re.search(r"so these jobs may run after it: (b, c|c, b)\.", shown(pages, "/jobs/a/trigger"))
    assert "Only this job runs. To run the whole workflow, trigger its root." in shown(pages, "/jobs/b/trigger")
    assert re.search(r"because these jobs run after it: (b, c|c, b)\.", shown(pages, "/jobs/a/delete"))
    deletion = shown(pages, "/jobs/d/delete", "The job stops firing.")
    assert "cancelled" not in deletion.partition("<main")[2].partition("</main>")[0]


def test_part_that_was_cancelled_beside_a_running_parent_stays_cancelled(pages: ApiClient) -> None:
    put(pages.database, DIAMOND)
    root = pages.database.trigger("a")
    end_and_drain(pages.database)
    end_and_drain(pages.database, 1)
    assert posted(pages, f"/runs/{run_of(pages.database, 'd')}/cancel").status_code == HTTPStatus.SEE_OTHER
    assert "4 jobs: 2 succeeded, 1 waiting, 1 cancelled." in shown(pages, f"/workflows/{root}")
    assert "3 of 4" in shown(pages, "/workflows")


def test_resume_names_what_runs_again_and_opens_a_generation(pages: ApiClient) -> None:
    root = played(pages.database)
    dialog = shown(pages, f"/workflows/{root}/resume", "Retry 2 jobs of a?")
    assert_has(dialog, "<bdi>2 jobs stay as they are.</bdi>", "<li><bdi>b</bdi></li><li><bdi>d</bdi></li>")
    assert_has(dialog, "1 dead letter is then marked retried.", without="open retry")
    retry = shown(pages, f"/runs/{run_of(pages.database, 'b')}/retry", "the current version, 1 (unchanged).")
    assert "Its dead letter is then marked retried." in retry
    assert posted(pages, f"/runs/{run_of(pages.database, 'b')}/retry").status_code == HTTPStatus.SEE_OTHER
    dialog = shown(pages, f"/workflows/{root}/resume", "1 open retry run continues beside the new runs.")
    assert "Dead letters that" not in dialog, "the retry counts as its redrive"
    assert posted(pages, f"/runs/{newest_retry(pages.database)}/cancel").status_code == HTTPStatus.SEE_OTHER
    answer = posted(pages, f"/workflows/{root}/resume")
    assert answer.headers["location"] == f"/workflows/{root}"
    page = shown(pages, f"/workflows/{root}", "2 jobs are resumed. Each of them runs again if its parents end")
    assert "4 jobs: 2 succeeded, 1 waiting, 1 pending." in page, "d waits for b again"
    assert "b</bdi> failed" in shown(pages, f"/workflows/{root}?generation=0")
    end_some(pages.database, lambda _: RunState.SUCCEEDED, never())
    assert "4 jobs: 3 succeeded, 1 pending." in shown(pages, f"/workflows/{root}"), "before the release of d"
    play(pages.database)
    assert workflow(pages.database, root)[0] == "succeeded"
    page = shown(pages, f"/workflows/{root}", "generation 1", "4 jobs: 4 succeeded.")
    assert f'href="/workflows/{root}?generation=0"' in page
    shown(pages, f"/workflows/{root}?generation=0", "This is generation 0, as it ended before the retry.")
    assert pages.get(f"/workflows/{root}?generation=2").status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "Retry failed" not in page
    assert pages.get(f"/workflows/{root}/resume").status_code == HTTPStatus.UNPROCESSABLE_ENTITY


def test_list_has_every_occurrence_by_state_and_root_in_pages(pages: ApiClient) -> None:
    put(pages.database, {"a": [], "b": after("a")})
    put(pages.database, {_SCRIPT: [], "below": after(_SCRIPT)})
    roots = [pages.database.trigger(key) for key in ("a", "a", _SCRIPT)]
    play(pages.database, failing)
    page = shown(pages, "/workflows")
    assert re.findall(r'data-key="([^"]+)"', page) == [str(root) for root in sorted(roots, reverse=True)]
    assert "<script>alert" not in page
    for query, found in (
        ("?state=failed", set(roots[:2])),
        ("?state=succeeded", {roots[2]}),
        ("?job=a", set(roots[:2])),
    ):
        assert {UUID(each) for each in re.findall(r'data-key="([^"]+)"', shown(pages, f"/workflows{query}"))} == found
    assert "No workflow matches the filters." in shown(pages, "/workflows?state=open")
    for query in ("?limit=1", "?limit=1&job=a", "?limit=1&state=failed"):
        seen = every_row(pages, f"/workflows{query}", r'data-key="([^"]+)"')
        assert len(seen) == len(set(seen)) == (3 if query == "?limit=1" else 2)
    assert pages.get("/workflows?job=none").status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    for path in (f"/workflows/{roots[2]}", f"/runs/{run_of(pages.database, 'below')}"):
        assert "<script>alert" not in shown(pages, path), path
    assert 'href="/workflows"' in shown(pages, "/runs")


def test_pause_and_cancel_count_what_they_touch(pages: ApiClient) -> None:
    put(pages.database, {"a": [], "b": after("a"), "c": after("b")})
    root = pages.database.trigger("a")
    end_some(pages.database, lambda _: RunState.SUCCEEDED, never())
    drain_some(pages.database, never())
    shown(pages, f"/workflows/{root}/pause", "1 job without a run waits until a resume.", "1 open run continues.")
    assert posted(pages, f"/workflows/{root}/pause", reason="<i>look").status_code == HTTPStatus.SEE_OTHER
    page = shown(pages, f"/workflows/{root}", "The workflow is paused.")
    assert re.search(r"Paused by [^<]+ (now|\d+ m?s ago): &lt;i&gt;look\. 3 jobs: 1 ", page)
    assert page.count("Waits until the workflow is resumed; after <bdi>b</bdi> succeeds") == 1
    assert f'action="/workflows/{root}/resume"' in page
    shown(pages, f"/workflows/{root}/cancel", "Cancel 1 open run of this workflow of a?")
    assert posted(pages, f"/workflows/{root}/cancel").status_code == HTTPStatus.SEE_OTHER
    shown(pages, f"/workflows/{root}", "1 run is being cancelled.", without=("Pause…", "Cancel…"))
    assert workflow(pages.database, root)[0] == "cancelling"
    for verb in ("cancel", "pause"):
        again = shown(pages, f"/workflows/{root}/{verb}")
        assert "Nothing would change. The workflow is being cancelled already." in again
        assert f"{verb.capitalize()} 1" not in again


def test_part_that_waits_has_its_reason_and_a_cancel_leaves_out_one_that_a_cancellation_has(pages: ApiClient) -> None:
    put(pages.database, {"a": [], "b": after("a"), "c": after("b")})
    root = pages.database.trigger("a")
    end_some(pages.database, lambda _: RunState.SUCCEEDED, never())
    drain_some(pages.database, never())
    page = shown(pages, f"/workflows/{root}")
    assert page.count("No live executor serves queue") == 1
    command = "<code><bdi>tidewheel service executor --queues default --handlers MODULES</bdi></code>"
    assert_has(page, "Start an executor<bdi>, where MODULES includes", command)
    pages.database.apply_batch({"type": "runs.cancel", "key": "b"})
    cancel = shown(pages, f"/workflows/{root}/cancel", "Cancel this workflow of a?")
    assert_has(cancel, "1 run is being cancelled already.", "1 job has ended and stays as it is.")
    assert posted(pages, f"/workflows/{root}/cancel").status_code == HTTPStatus.SEE_OTHER
    assert workflow(pages.database, root)[0] == "cancelling"


@pytest.mark.landing
def test_many_children_of_one_state_are_one_node_and_the_list_has_pages(pages: ApiClient) -> None:
    put(pages.database, {"root": []} | {f"load-{at:03}": after("root") for at in range(230)})
    root = pages.database.trigger("root")
    play(pages.database, lambda key: RunState.FAILED if key == "load-007" else RunState.SUCCEEDED)
    page = shown(pages, f"/workflows/{root}", "\u00d7 229 load-*")
    assert page.count('<g class="node') == 3
    assert "1\u2013200 of 231 jobs" in page
    following = next_page(page)
    assert following
    assert shown(pages, following).count('<li class="depth-') == 31
    assert len(page.encode()) < 300_000


def test_a_graph_that_cannot_be_read_has_a_list_alone() -> None:
    chain = [WorkflowNode("0", "succeeded", [])]
    chain += [WorkflowNode(str(at), "succeeded", [Parent(str(at - 1), "success")]) for at in range(1, 1_002)]
    assert picture_of(chain) is None
    assert picture_of(chain[:1_000]) is not None


def test_groups_are_of_one_state_and_of_the_same_parents() -> None:
    nodes = [WorkflowNode("root", "succeeded", [])]
    for state in ("succeeded", "failed"):
        nodes += [WorkflowNode(f"{state}-{at}", state, [Parent("root", "success")]) for at in range(FOLDED + 1)]
    nodes += [WorkflowNode(f"few-{at}", "skipped", [Parent("root", "success")]) for at in range(FOLDED)]
    nodes.append(WorkflowNode("end", "succeeded", [Parent("succeeded-0", "success"), Parent("few-0", "always")]))
    picture = picture_of(nodes)
    assert picture is not None
    assert sorted(len(part.nodes) for part in picture.parts) == [1] * (FOLDED + 2) + [FOLDED + 1] * 2
    assert picture.is_folded

"""Filters of lists: what does not fit is named with its field and its remedy, above an empty list."""

import html
import re
from http import HTTPStatus

from tests.control.api.answering import ApiClient
from tests.transitions.acts import submit, trigger

_BAND = re.compile(r'<p class="band trouble" role="alert">.*?</p>')
_CURSOR = "cursor: 'MQ' is not a cursor of this list. Open the list again, from its first page."
_NO_JOB = "job: Tenant 'default' has no job 'none'. Correct the key, or find the job in the list of jobs."


_REFUSED = {
    "/runs?job=none": _NO_JOB,
    "/runs?label=team%3Da": "label: Labels alone would read all runs. Add a job key, or choose a time in the field"
    " since.",
    "/runs?label=team": "label: 'team' is not valid. Write name=value.",
    "/runs?last=1y": "last: '1y' is not valid. Write '1h', '24h', '7d' or '30d'.",
    "/runs?status=failed&ordering_key=a": "ordering_key: Runs that have ended cannot be filtered by it. Leave it out,"
    " or choose an open status.",
    "/runs?cursor=MQ": _CURSOR,
    "/jobs?cursor=MQ": _CURSOR,
    "/jobs?lane=slow": "lane: 'slow' is not valid. Write 'critical', 'standard' or 'batch'.",
    "/dead-letters?job=none": _NO_JOB,
    "/dead-letters?show=some": "show: 'some' is not valid. Write 'open', 'redriven' or 'all'.",
    "/dead-letters?cursor=MQ": _CURSOR,
    "/workflows?job=none": _NO_JOB,
    "/admin/audit?cursor=MQ": _CURSOR,
    "/admin/audit?door=back": "door: 'back' is not valid. Write 'rest', 'kafka', 'cli', 'client' or 'console'.",
    "/admin/keys?cursor=MQ": _CURSOR,
    "/admin/tenants?cursor=MQ": _CURSOR,
}


def test_refused_filter_is_named_once_with_its_remedy_and_one_by_labels_has_a_link(pages: ApiClient) -> None:
    submit(pages.database, "nightly", labels={"team": "a"})
    trigger(pages.database, "nightly")
    for path, words in _REFUSED.items():
        answer = pages.get(path)
        assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, path
        assert [html.unescape(re.sub(r"<[^>]+>", "", each)) for each in _BAND.findall(answer.text)] == [words]
        for wrong in ("could not be read", "<tbody", "fits the filters"):
            assert wrong not in answer.text, path
    refused = pages.get("/runs?label=team%3Da&status=queued")
    assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    found = re.search(r'href="([^"]+)">Runs of the last 24 h that match</a>', refused.text)
    assert found
    assert "1 run matches." in pages.get(html.unescape(found[1])).text
    assert "of the last 24 h" not in pages.get("/runs?label=team").text

"""Documents as people submit them, and what becomes of them: a spec, or refusals by path."""

from collections.abc import Mapping

import pytest

from tidewheel.errors import InvalidInput
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec import JobSpec


def submitted(**job: object) -> JobSpec:
    document = {"key": "k", "schedule": "manual", "target": "send-email"} | job
    request = parse_request({"type": "job.submit", "job": document})
    assert isinstance(request, JobSubmit)
    return request.job


def refused(document: Mapping[str, object]) -> dict[str, str]:
    """Problem and remedy of each refused field by its path."""
    with pytest.raises(InvalidInput) as caught:
        parse_request(document)
    return {error.path: f"{error.problem}; {error.remedy}" for error in caught.value.errors}


def refused_job(**job: object) -> dict[str, str]:
    document = {"key": "k", "schedule": "manual", "target": "send-email"} | job
    return refused({"type": "job.submit", "job": document})

"""The confirm page of a retry by filter."""

from tidewheel.control.console.words import agreed, counted
from tidewheel.doors.console import Confirm
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.nouns.runs.operations import RetryWork, Runs


def _line(each: RunSummary) -> str:
    return f"{each.run_id}  {each.key}  {each.error_type or each.status}"


def _under_way(result: RetryWork) -> str:
    many = counted(result.matched, "failed run", at_least=result.at_least)
    return f"{many} {agreed(result.matched, 'is', 'are')} being retried."


RETRY = Confirm(
    noun=Runs, verb="retry_failed", things="failed run", back="runs", not_back=("error_type",),
    one=("run", "run_id"),
    sentence="Each becomes a new run with its own payload, unless it has been retried already.",
    line=_line, done=_under_way, to=lambda urls, result: urls("bulk_work", kind="retry", id=result.work_id),
    labels={"rate": "How many per second at most", "versions": "Version of the new runs"}, values={"rate": "50"},
)  # fmt: skip

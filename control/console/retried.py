"""Sentences that count what a dialog of many retries has to know: workflows, retries and deleted jobs."""

from collections.abc import Sequence

from tidewheel.control.console.under_way import share
from tidewheel.control.console.words import number
from tidewheel.control.reads.retry_facts import RetryFacts, count_open_retries

PARTS = "Each runs alone: only a resume of its workflow starts the jobs after it."


def retried_lines(facts: Sequence[RetryFacts], noun: str) -> Sequence[str]:
    """Return a sentence about each fact that some of these runs have.

    Args:
        facts: Of each run that gets a new one.
        noun: What the dialog calls one.
    """
    parts, retried = sum(each.is_part for each in facts), sum(each.retries > 0 for each in facts)
    still_open = count_open_retries(facts)
    found = (
        (parts, f"Parts of workflows: {share(parts, len(facts), noun)}. {PARTS}"),
        (retried, f"Retried before: {share(retried, len(facts), noun)}. Each gets one more run."),
        (still_open, f"Open retries of these, which go on beside the new runs: {number(still_open)}."),
    )
    return [words for count, words in found if count]

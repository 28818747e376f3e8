"""Sentences that count what a dialog of many retries has to know: workflows, retries and deleted jobs."""

from collections.abc import Sequence

from tidewheel.control.console.words import agreed, number
from tidewheel.nouns.runs.detail import RetryFacts, count_open_retries

PARTS = "Each runs alone: to start the jobs after it, resume its workflow."
_PART = "It runs alone: to start the jobs after it, resume the workflow."


def retried_lines(facts: Sequence[RetryFacts], noun: str) -> Sequence[str]:
    """Return a sentence about each fact that some of these runs have; a run is called `noun`."""
    parts, retried = sum(each.is_part for each in facts), sum(each.retries > 0 for each in facts)
    still_open = count_open_retries(facts)
    part = agreed(parts, "is a part of a workflow", "are parts of workflows")
    before = agreed(retried, "was retried before and gets", "were retried before and get")
    go_on = agreed(still_open, "retry is open and goes", "retries are open and go")
    found = (
        (parts, f"{share_first(parts, len(facts), noun)} {part}. {_PART if parts == 1 else PARTS}"),
        (retried, f"{share_first(retried, len(facts), noun)} {before} one more run."),
        (still_open, f"{number(still_open)} earlier {go_on} on."),
    )
    return [words for count, words in found if count]


def share_first(count: int, matched: int, noun: str) -> str:
    """Return `share` as the first words of a sentence."""
    words = share(count, matched, noun)
    return f"{words[:1].upper()}{words[1:]}"


def share(count: int, matched: int, noun: str) -> str:
    """Return how many of the things of a dialog bulk work has.

    >>> share(1, 1, "run"), share(3, 3, "run"), share(2, 24, "run")
    ('this run', 'all of these runs', '2 of these 24 runs')
    """
    if count >= matched:
        return f"this {noun}" if matched == 1 else f"all of these {noun}s"
    return f"{number(count)} of these {number(matched)} {noun}s"

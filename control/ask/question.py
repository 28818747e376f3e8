"""Read a question: each way in which its text names a run, a dead letter, a job or an instant."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar
from uuid import UUID

from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import MAX_TEXT, one_line

T = TypeVar("T")

MAX_QUESTION = 400
"""The characters of a question: the longest key with a time behind it."""

_DEAD_LETTER = re.compile(r"#(\d{1,18})", re.ASCII)
_WHY = re.compile(r"why (?:did )?(?=\S)", re.IGNORECASE)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_SHORT_ID = re.compile(r"([0-9a-f]{8})(?:…|\.\.\.)([0-9a-f]{4})", re.IGNORECASE)
_AT = " at "
_ONE_LINE = one_line(MAX_TEXT)
_TIME_WORDS = 7  # of the longest time: Sat 21 Nov 2026 11:13:04.118 pm UTC


@dataclass(frozen=True, slots=True)
class Named:
    """A key that a question may name, and the time behind it.

    Args:
        key: The key.
        time: The time, as it is written; None if the question has none.
    """

    key: str
    time: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question.

    Args:
        text: Its text without blanks around it.
        asks_why: True if it begins with `why`.
        id: The id that it is.
        short_id: The begin and the end of a run id, as pages show it.
        dead_letter: The number of the dead letter that it is.
        named: The keys that it may name, the likeliest first.
    """

    text: str
    asks_why: bool
    id: UUID | None
    short_id: tuple[str, str] | None
    dead_letter: int | None
    named: tuple[Named, ...]


def read_question(text: str) -> Question:
    """Return the meanings of a text.

    >>> read_question("#4711").dead_letter
    4711
    >>> read_question("01A1F866…44d1").short_id, read_question("01a1f866...44d1").short_id
    (('01a1f866', '44d1'), ('01a1f866', '44d1'))
    >>> [(each.key, each.time) for each in read_question("nightly at 2:30").named[:2]]
    [('nightly at 2:30', None), ('nightly', '2:30')]
    >>> [(each.key, each.time) for each in read_question("why a b").named]
    [('why a b', None), ('why', 'a b'), ('why a', 'b'), ('a b', None), ('a', 'b')]
    """
    text = text[:MAX_QUESTION].strip()
    why = _WHY.match(text)
    rests = dict.fromkeys((text, text[why.end() :]) if why else (text,))
    letter, short = _DEAD_LETTER.fullmatch(text), _SHORT_ID.fullmatch(text.lower())
    return Question(
        text=text,
        asks_why=why is not None,
        id=UUID(text) if _UUID.fullmatch(text) else None,
        short_id=(short[1], short[2]) if short else None,
        dead_letter=int(letter[1]) if letter else None,
        named=tuple(dict.fromkeys(each for rest in rests for each in _named(rest) if _may_be_key(each.key))),
    )


def likeliest(question: Question, error_of: Callable[[str], T | None]) -> tuple[Named, T | None]:
    """Return the key and the time that a text most likely names, and the error of that time.

    That is the longest time that can be read, else what follows the last `at`, else the text as a key.

    Args:
        question: The question, which names a key.
        error_of: Returns why a time cannot be read; None if it can.
    """
    timed = [(each, each.time, error_of(each.time)) for each in question.named if each.time is not None]
    if read := [(len(time), -len(each.key), each) for each, time, error in timed if error is None]:
        return max(read, key=itemgetter(0, 1))[2], None
    if behind := [
        (len(time), len(each.key), each, error) for each, time, error in timed if each.key + _AT in question.text
    ]:
        return min(behind, key=itemgetter(0, 1))[2:]
    return Named(question.text), None


def _named(text: str) -> Iterator[Named]:
    yield Named(text)
    place = text.rfind(_AT)
    while place > 0:
        yield Named(text[:place].strip(), _time(text[place + len(_AT) :]))
        place = text.rfind(_AT, 0, place)
    words = text.split(" ")
    for count in range(min(_TIME_WORDS, len(words) - 1), 0, -1):
        yield Named(" ".join(words[:-count]).strip(), _time(" ".join(words[-count:])))


def _time(text: str) -> str:
    return text.strip().removesuffix("?").rstrip()


def _may_be_key(text: str) -> bool:
    try:
        return bool(_ONE_LINE(text))
    except InvalidValue:
        return False

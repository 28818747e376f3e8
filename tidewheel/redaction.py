"""Redact secrets in text that leaves a process: log lines, errors of commands, errors that are stored.

Two rules. A secret that this process has read is replaced wherever its value occurs: who reads one calls `protect`.
Secrets that a process does not know are found by their form: the user in a URL, its query, `password=…`, `whsec_…`, the
value behind the name of a credential header.
"""

import json
import re
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import NamedTuple
from urllib.parse import quote

REDACTED = "[redacted]"

# Headers whose value is a credential. Sources: RFC 9110 section 11.6.2, RFC 6265 section 4.2; the manuals of OpenStack,
# GitLab, Vault, AWS, Google and Azure for the others. Every `proxy-` header is Tidewheel's own.
CREDENTIAL_HEADERS = (
    "authorization",
    "cookie",
    "api-key",
    "apikey",
    "x-api-key",
    "x-auth-token",
    "x-access-token",
    "private-token",
    "x-vault-token",
    "x-amz-security-token",
    "x-goog-api-key",
    "x-functions-key",
    "ocp-apim-subscription-key",
)

_SHORTEST = 8  # a shorter value is part of ordinary words, whose replacement makes logs unreadable
_SCHEMES = frozenset(("bearer", "basic", "token"))
_SHOWN_HEADERS = (*CREDENTIAL_HEADERS, "set-cookie", "webhook-signature", "tidewheel-task-token")


class _Form(NamedTuple):
    """A form of secrets. `hints`: a text with none of them, in lower case, has no such secret."""

    hints: Sequence[str]
    pattern: re.Pattern[str]
    replacement: str


_FORMS = (
    # Not the example of an error's remedy.
    _Form(("://",), re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)(?!user:password@)[^\s/?#\"'<>]*@"), rf"\1{REDACTED}@"),
    _Form(("://",), re.compile(r"(?i)\b(https?://[^\s?#\"'<>]*\?)[^\s#\"'<>]+"), rf"\1{REDACTED}"),
    _Form(("whsec_",), re.compile(r"\bwhsec_[A-Za-z0-9+/=_-]+"), REDACTED),
    _Form(("password",), re.compile(r"(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s;,&\"']+)"), rf"\1{REDACTED}"),
    _Form(
        _SHOWN_HEADERS,
        # Not the path of a field in an error: `headers.Authorization: …`.
        re.compile(
            rf"(?i)(?<![.\w])({'|'.join(_SHOWN_HEADERS)})(['\"]?\s*[:=]\s*(?:b?['\"])?)"
            rf"(?:(?:{'|'.join(_SCHEMES)})\s+)?[^\s'\",;]+(?:;\s*[^\s'\",;]+)*"
        ),
        rf"\1\2{REDACTED}",
    ),
)


class Redactor:
    """Replaces exact values in texts, the longest first.

    Args:
        values: What to write in the place of each secret.
        shortest: Values with fewer characters stay.
    """

    def __init__(self, values: Mapping[str, str], *, shortest: int = 1) -> None:
        self._places = {
            spelling: place
            for value, place in values.items()
            for part in _parts(value)
            if len(part) >= shortest
            for spelling in _spellings(part)
        }
        longest_first = sorted(self._places, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def redact(self, text: str) -> str:
        """Return the text with each value replaced."""
        return text if self._pattern is None else self._pattern.sub(lambda found: self._places[found.group()], text)

    def redact_cut(self, text: str) -> str:
        """Do the same in a text that was cut off: a value may have lost its end."""
        text = self.redact(text)
        ends = (
            (length, spelling)
            for spelling in self._places
            for length in range(min(len(spelling) - 1, len(text)), _SHORTEST - 1, -1)
            if text.endswith(spelling[:length])
        )
        length, spelling = max(ends, default=(0, ""))
        return text[:-length] + self._places[spelling] if length else text


class _Known:
    """The secrets that this process has read."""

    def __init__(self) -> None:
        self._changing = Lock()
        self._values: dict[str, str] = {}
        self.redactor = Redactor({})

    def add(self, *secrets: str | None) -> None:
        with self._changing:
            new = {secret: REDACTED for secret in secrets if secret and secret not in self._values}
            if new:
                self._values |= new
                self.redactor = Redactor(self._values, shortest=_SHORTEST)


_known = _Known()


def protect(*secrets: str | None) -> None:
    """Redact these values from now on, in every text of this process; shorter ones stay."""
    _known.add(*secrets)


def redact(text: str) -> str:
    """Return a text without the secrets that this process has read, nor those that their form shows.

    >>> redact("GET https://ann:pw@example.org/a?key=1 failed")
    'GET https://[redacted]@example.org/a?[redacted] failed'
    """
    text = _known.redactor.redact(text)
    lower = text.lower()
    for form in _FORMS:
        if any(hint in lower for hint in form.hints):
            text = form.pattern.sub(form.replacement, text)
    return text


def _parts(value: str) -> set[str]:
    """Return a header's value, and its credential alone: a receiver may repeat `abc` of `Bearer abc`."""
    scheme, blank, credential = value.partition(" ")
    known = blank and scheme.lower() in _SCHEMES and len(credential.strip()) >= _SHORTEST
    return {value, credential.strip()} if known else {value}


def _spellings(value: str) -> set[str]:
    """Return a value as it is, and as JSON and URLs escape it."""
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value), quote(value, "")}

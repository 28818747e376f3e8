"""Redact secrets in text that leaves a process: log lines, errors of commands, errors that are stored.

Two rules. A secret that this process has read is replaced wherever its value occurs: who reads one calls `protect`.
Secrets that a process does not know are found by their form: the user in a URL, its query, `password=…`, `whsec_…`, the
value behind the name of a credential header.
"""

import json
import re
from collections.abc import Mapping, Sequence
from html.entities import codepoint2name
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

_SECRET_SETTINGS = ("password", "passphrase", "secret", "jaas", "key.pem", "oauthbearer.config")

_SHORTEST = 8  # a shorter value is part of ordinary words, whose replacement makes logs unreadable
_SCHEMES = frozenset(("bearer", "basic", "token"))
_SHOWN_HEADERS = (*CREDENTIAL_HEADERS, "set-cookie", "webhook-signature", "tidewheel-task-token")


class _Form(NamedTuple):
    """A form of secrets. `hints`: a text with none of them, in lower case, has no such secret.

    The first group of the pattern stays, the rest of a match is the secret.
    """

    hints: Sequence[str]
    pattern: re.Pattern[str]


_IN_QUERY = re.compile(
    r"(?i)([?&](?:[\w.~-]*(?:token|secret|passw|signature|credential)[\w.~-]*|key|api[_-]?key|sig|code|auth|pwd)=)[^&#]+"
)
_MARK = r"\[secret [A-Z][A-Z0-9_]{0,63}\]"  # in the place of a secret that a receiver repeated
_MARK_OR_TEXT = re.compile(rf"({_MARK})|(?:(?!{_MARK}).)+", re.DOTALL)
_QUOTE = r"(?:\\*['\"]|&(?:quot|apos|#39|#34|#x27|#x22);)"
_SCHEME = rf"(?:{'|'.join(_SCHEMES)})\s+"
# Not the path of a field in an error: `headers.Authorization: …`.
_HEADER = rf"(?i)((?<![.\w])(?:{'|'.join(_SHOWN_HEADERS)}){_QUOTE}?\s*[:=]\s*"
_PART = rf"(?:{_MARK}|[^\s'\",;])+"

_ENTITIES = codepoint2name | {ord("'"): "apos"}  # which HTML has since version 5

_FORMS = (
    # Not the example of an error's remedy.
    _Form(
        ("://",),
        re.compile(rf"(\b[A-Za-z][A-Za-z0-9+.-]*://)(?!user:password@)(?:{_MARK}|[^\s/?#\"'<>])*(?=@)"),
    ),
    _Form(
        ("://",),
        # A path ends where another URL begins, or a text full of these would be read to its end for each of them.
        re.compile(
            rf"(?i)(\bhttps?://(?:[^\s?#\"'<>\[h]++|(?!\bhttps?://)h|{_MARK}|\[)*+\?)"
            rf"(?:{_MARK}|[^\s,#\"'<>]|,(?=[^\s#\"'<>]))+"
        ),
    ),
    _Form(("tw_",), re.compile(r"(\btw_[0-9a-z]{10}_)[0-9A-Za-z]{49}")),  # an API key; its id stays
    _Form(("whsec_",), re.compile(r"()\bwhsec_[A-Za-z0-9+/=_-]+")),
    _Form(("password",), re.compile(r"(?i)(password\s*=\s*')(?:[^'\\]|\\.)*(?=')")),
    _Form(("password",), re.compile(rf"(?i)(password\s*=\s*)(?:{_MARK}|[^\s;,&\"'])+")),
    _Form(_SHOWN_HEADERS, re.compile(rf"{_HEADER}b?({_QUOTE})(?:{_SCHEME}(?={_MARK}))?)(?:(?!\2)(?:\\.|.))+")),
    _Form(
        _SHOWN_HEADERS,
        # Parts of cookies, and of signatures: `v1,… v1,…`.
        re.compile(
            rf"{_HEADER}(?:{_SCHEME}(?={_MARK}))?)(?!b?{_QUOTE})(?:{_SCHEME})?"
            rf"{_PART}(?:(?:,|;\s*|\s+(?=v\d+a?,)){_PART})*"
        ),
    ),
)


class Redactor:
    """Replaces exact values in texts, the longest first; values that are too short stay."""

    def __init__(self, values: Mapping[str, str], *, shortest: int = 1) -> None:
        places = {part: place for value, place in values.items() for part in _parts(value) if len(part) >= shortest}
        longest_first = sorted(places, key=len, reverse=True)
        self._places = [places[part] for part in longest_first]
        # What is redacted already stays. The empty group of a part has its number.
        kept = "|".join(re.escape(mark) for mark in sorted({REDACTED, *values.values()}))
        whole = "|".join(f"{''.join(map(_escaped, part))}()" for part in longest_first)
        self._pattern = re.compile(f"{kept}|{whole}") if whole else None
        self._cut = "|".join(f"{_cut(part)}()" for part in longest_first if len(part) > _SHORTEST)

    def redact(self, text: str) -> str:
        """Return the text with each value replaced."""
        return text if self._pattern is None else self._pattern.sub(self._place, text)

    def redact_cut(self, text: str) -> str:
        """Do the same in a text that was cut off: a value may have lost its end."""
        text = self.redact(text)
        return re.sub(self._cut, self._place, text) if self._cut else text

    def _place(self, found: re.Match[str]) -> str:
        return found[0] if found.lastindex is None else self._places[found.lastindex - 1]


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


def is_secret(name: str) -> bool:
    """Return True if a Kafka setting, or a part of a connection string, of this name is a secret."""
    return any(part in name for part in _SECRET_SETTINGS)


def redact(text: str) -> str:
    """Return a text without the secrets that this process has read, nor those that their form shows.

    >>> redact("GET https://ann:pw@example.org/a?key=1 failed")
    'GET https://[redacted]@example.org/a?[redacted] failed'
    """
    while (hidden := _redact_once(text)) != text:  # a replacement can complete another form
        text = hidden
    return text


def redact_query(url: str) -> str:
    """Return a URL as output shows it: without the values in its query whose names are those of secrets.

    >>> redact_query("https://example.org/hook?day=1&access_token=abc&sig=d#part")
    'https://example.org/hook?day=1&access_token=[redacted]&sig=[redacted]#part'
    """
    return _IN_QUERY.sub(rf"\1{REDACTED}", url)


def _redact_once(text: str) -> str:
    text = _known.redactor.redact(text)
    lower = text.lower()
    for form in _FORMS:
        if any(hint in lower for hint in form.hints):
            text = form.pattern.sub(_hide, text)
    return text


def _hide(found: re.Match[str]) -> str:
    """Return a match without its secret; the names of secrets in it stay."""
    return found[1] + _MARK_OR_TEXT.sub(lambda part: part[1] or REDACTED, found[0][len(found[1]) :])


def _parts(value: str) -> set[str]:
    """Return a header's value, and its credential alone: a receiver may repeat `abc` of `Bearer abc`."""
    scheme, blank, credential = value.partition(" ")
    known = blank and scheme.lower() in _SCHEMES and len(credential.strip()) >= _SHORTEST
    return {value, credential.strip()} if known else {value}


def _escaped(letter: str) -> str:
    """Return the pattern of a character as it is, and as JSON, URLs and HTML escape it."""
    if letter.isascii() and letter.isalnum():
        return letter
    code = ord(letter)
    named = {f"&{_ENTITIES[code]};"} if code in _ENTITIES else set[str]()
    fixed = sorted(named | {json.dumps(letter)[1:-1], f"\\u{code:04x}", quote(letter, "")})
    escapes = "|".join(map(re.escape, fixed))
    # A quote in JSON has a backslash, which stays when another escape is added.
    return rf"(?:\\|%5C)?(?:{re.escape(letter)}|(?i:{escapes}|&\#0*{code};|&\#x0*{code:x};))"


def _cut(value: str) -> str:
    """Return the pattern of a value's beginning at the end of a text."""
    first, rest = value[:_SHORTEST], value[_SHORTEST:]
    end = r"(?:[&%\\][#\w]{0,8})?\Z"
    return "".join(map(_escaped, first)) + "".join(f"(?:{end}|{_escaped(letter)})" for letter in rest)

"""The JSON objects of a page's `json` blocks."""

import json
import re
from pathlib import Path
from typing import Any

_JSON = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def documents(page: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a page; a block may hold several."""
    found: list[dict[str, Any]] = []
    for block in _JSON.finditer(page.read_text(encoding="utf-8")):
        text, at = block[1].strip(), 0
        while at < len(text):
            document, at = json.JSONDecoder().raw_decode(text, at)
            found.append(document)
            at += len(text[at:]) - len(text[at:].lstrip())
    return found

"""Many jobs from files: JSON lines, one JSON object, a JSON array, or YAML (one job, a list, or several documents).

JSON lines are read a line at a time, however many there are; anything else is read whole. What cannot be read is told
with its place and stops nothing.
"""

import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import yaml

from tidewheel.control.cli.job_files import STANDARD_INPUT, JobLoader
from tidewheel.errors import UndecodableMessage, refuse
from tidewheel.jobs.strict_json import as_object

MOST_WHOLE_BYTES = 64 << 20  # of what is read whole: some 100,000 jobs; more are written as JSON lines

_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"


class Written(NamedTuple):
    """One job as a file has it.

    Args:
        place: `file:line`.
        content: Its JSON text; the mapping that YAML holds; or why it is neither.
        bytes_read: How much of the file has been read with it.
    """

    place: str
    content: bytes | dict[str, object] | UndecodableMessage
    bytes_read: int


def read_jobs(source: str) -> Iterator[Written]:
    """The jobs of a file, in their order; `-` is standard input.

    Raises:
        InvalidInput: It cannot be read, or is too long to be read whole.
    """
    name = "<stdin>" if source == STANDARD_INPUT else source
    with _opened(source) as stream:
        number, line = 0, b""
        for line in stream:
            number += 1
            if line.strip():
                break
        start = line.lstrip()[:1]
        if source.endswith((".yaml", ".yml")) or start not in {b"{", b"["}:
            yield from _yaml(name, number - 1, line + _rest(stream, source, line))
        elif start == b"[" or not _is_whole(line):
            yield from _array(name, number, line + _rest(stream, source, line))
        else:
            yield from _lines(name, number, line, stream)


@contextmanager
def _opened(source: str) -> Generator[BinaryIO]:
    if source == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        with Path(source).open("rb") as stream:
            yield stream
    except OSError as error:
        refuse("FILE", f"{source} cannot be read ({error.strerror})", "name a file, or - for standard input")


def _rest(stream: BinaryIO, source: str, line: bytes) -> bytes:
    rest = stream.read(MOST_WHOLE_BYTES + 1)
    if len(line) + len(rest) > MOST_WHOLE_BYTES:
        problem = f"{source} has more than {MOST_WHOLE_BYTES} bytes, too many to be read whole"
        refuse("FILE", problem, "write one JSON object on each line")
    return rest


def _is_whole(line: bytes) -> bool:
    """Whether a line is a JSON object, and not the beginning of one."""
    try:
        return as_object(json.loads(line)) is not None
    except (ValueError, RecursionError):
        return line.rstrip().endswith(b"}") and line.lstrip().startswith(b"{")


def _lines(name: str, number: int, line: bytes, stream: BinaryIO) -> Iterator[Written]:
    read = 0
    while line:
        read += len(line)
        if stripped := line.strip():
            yield Written(f"{name}:{number}", stripped, read)
        line, number = stream.readline(), number + 1


def _array(name: str, number: int, data: bytes) -> Iterator[Written]:
    """The objects of an array, or a single one: each as its text, at the line where it begins."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield Written(f"{name}:{number}", UndecodableMessage(f"this is no UTF-8: {error.reason}"), len(data))
        return
    at, counted = 0, 0
    if listed := text.lstrip().startswith("["):
        at = text.index("[") + 1
    while True:
        at = _after(text, at, _BLANK + "," if listed else _BLANK)
        number, counted = number + text.count("\n", counted, at), at
        if at == len(text) or (listed and text[at] == "]"):
            return
        try:
            _, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            problem = f"this is no JSON: {error}" if isinstance(error, ValueError) else "this is nested too deeply"
            yield Written(f"{name}:{number}", UndecodableMessage(problem), len(data))
            return
        yield Written(f"{name}:{number}", text[at:end].encode("utf-8", "surrogatepass"), len(data) * end // len(text))
        at = end


def _after(text: str, at: int, passed: str) -> int:
    while at < len(text) and text[at] in passed:
        at += 1
    return at


def _yaml(name: str, before: int, data: bytes) -> Iterator[Written]:
    try:
        loader = JobLoader(data.decode())
        while loader.check_node():
            node = cast("yaml.Node", loader.get_node())
            for one in node.value if isinstance(node, yaml.SequenceNode) else [node]:
                place = f"{name}:{before + one.start_mark.line + 1}"
                made = cast("object", loader.construct_document(one))  # pyright: ignore[reportUnknownMemberType]
                found = as_object(made)
                content = UndecodableMessage("this is no mapping") if found is None else found
                yield Written(place, content, len(data))
    except UnicodeDecodeError as error:
        yield Written(f"{name}:{before + 1}", UndecodableMessage(f"this is no UTF-8: {error.reason}"), len(data))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{name}:{before + (mark.line + 1 if mark else 1)}"
        yield Written(place, UndecodableMessage(f"this is no YAML: {' '.join(str(error).split())}"), len(data))

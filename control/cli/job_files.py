"""Jobs in files: one job for `job create`, many for `apply`.

One job is a JSON object or a YAML mapping. Many jobs are JSON lines, one JSON object, a JSON array, or YAML: one job, a
list, or several documents. JSON lines are read one at a time, in any number. Any other form is read whole, up to
64 MiB. A job that cannot be read is reported with its place, and the other jobs are read.

YAML has JSON's types: a date, a time or `yes` is text, names are text, and a repeated name is refused. A job whose
aliases repeat so much that it would be longer than a request is refused before it is made: nine lines of YAML may stand
for a billion values.
"""

import codecs
import json
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

import typer
import yaml

from tidewheel.control.client.bulk_load import REMEDY, JobText
from tidewheel.control.foreign import is_manifest, objects_of, read_cron_job
from tidewheel.control.reads.yaml_form import NULL, JobLoader
from tidewheel.errors import FieldError, InvalidInput, UndecodableMessage, refuse
from tidewheel.jobs.invalid import UnreadableValue
from tidewheel.jobs.strict_json import MAX_DOCUMENT_BYTES, as_object, read_object, read_value

STANDARD_INPUT = "-"
MAX_WHOLE_BYTES = 64 << 20  # of a file that is read whole: some 100,000 jobs; JSON lines have no limit

_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"
_CUT_OFF = FieldError("", "the file ends within the array", "write the whole array, which ends with `]`")
_COMMA = FieldError(
    "", "two jobs of the array are not separated by exactly one comma", "write one comma between two jobs"
)
_BEHIND = FieldError("", "text follows the array", "write one array, or one JSON object on each line")

_TOO_DEEP = "is nested too deeply"


def read_job(source: str) -> dict[str, object]:
    """Return the job that a file describes; `-` is standard input."""
    found = read_document(source, "write the job as an object: key, schedule, target")
    if not is_manifest(found):
        return found
    objects = objects_of(found)
    if len(objects) != 1:
        refuse("--file", f"{source} contains {len(objects)} Kubernetes objects", "run `tidewheel apply` with the file")
    read = read_cron_job(objects[0])
    for note in read.notes:
        typer.echo(f"{source}: {note}", err=True)
    return read.job


def read_document(source: str, remedy: str) -> dict[str, object]:
    """Return the object that a file contains, or refuse it with the remedy; `-` is standard input."""
    data = read_bytes(source, "--file")
    if data.lstrip()[:1] == b"{":
        try:
            found = read_object(data)
        except UndecodableMessage as error:
            refuse("--file", f"{source}: {error}", remedy)
    else:
        written = [each.content for each in _yaml(source, 0, data)]
        if wrong := next((each for each in written if isinstance(each, FieldError)), None):
            refuse("--file", f"{source}: {wrong.problem}", wrong.remedy)
        if len(written) != 1:
            refuse("--file", f"{source} contains {len(written)} objects instead of one", remedy)
        found = cast("dict[str, object]", written[0])
    # Before flags are applied: a flag would hide a field that is ambiguous in the file.
    misread = [(name, value) for name, value in found.items() if isinstance(value, UnreadableValue)]
    if misread:
        raise InvalidInput([FieldError(name, value.problem, value.remedy) for name, value in misread])
    return found


def read_bytes(source: str, path: str) -> bytes:
    """Return the content of a file; `-` is standard input."""
    with _opened(source, path) as stream:
        data = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        problem = f"{source} has more than {MAX_DOCUMENT_BYTES} bytes, the limit of one request"
        refuse(path, problem, "shorten it; `tidewheel apply` reads many jobs")
    return data


def ensure_bounded(root: yaml.Node) -> None:
    """Refuse a node that would be too long with each alias written out; each node is counted once."""
    sizes: dict[int, int | None] = {}  # by identity; None while its parts are counted
    pending = [root]
    while pending:
        node = pending[-1]
        parts = _parts(node)
        if id(node) not in sizes:
            sizes[id(node)] = None
            unknown = [part for part in parts if id(part) not in sizes]
            if unknown:
                pending += unknown
                continue
        pending.pop()
        if sizes[id(node)] is not None:
            continue  # met twice before it was counted
        lengths = [sizes[id(part)] for part in parts]
        if None in lengths:
            raise yaml.constructor.ConstructorError(None, None, "an alias contains itself", node.start_mark)
        own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        sizes[id(node)] = size = 1 + own + sum(length for length in lengths if length is not None)
        if size > MAX_DOCUMENT_BYTES:
            problem = f"its aliases expand to more than {MAX_DOCUMENT_BYTES} characters"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _parts(node: yaml.Node) -> list[yaml.Node]:
    match node:
        case yaml.SequenceNode():
            return cast("list[yaml.Node]", node.value)
        case yaml.MappingNode():
            return [part for pair in cast("list[tuple[yaml.Node, yaml.Node]]", node.value) for part in pair]
        case _:
            return []


def ensure_readable(source: str) -> None:
    """Check that a file can be read, before any other file is applied; raise InvalidInput if not."""
    with suppress(OSError):  # of a name that is too long, which opening reports
        if Path(source).is_fifo():  # opening a pipe and closing it would break its writer
            return
    with _opened(source):
        pass


def read_jobs(source: str) -> Iterator[JobText]:
    """Yield the jobs of a file in order; `-` is standard input."""
    for written in _read_file(source):
        if (document := _mapping_of(written.content)) and is_manifest(document):
            yield from _of_kubernetes(written, document)
        else:
            yield written


def _mapping_of(content: bytes | dict[str, object] | FieldError) -> dict[str, object] | None:
    """Return content that may be an object of Kubernetes; of JSON text most is not, and is left unread."""
    if isinstance(content, bytes):
        return as_object(read_value(content)) if b'"kind"' in content else None
    return content if isinstance(content, dict) else None


def _of_kubernetes(written: JobText, document: Mapping[str, object]) -> Iterator[JobText]:
    for each in objects_of(document):
        try:
            found = read_cron_job(each)
        except InvalidInput as error:
            yield written._replace(content=error.errors[0])
        else:
            yield written._replace(content=found.job, notes=found.notes)


def _read_file(source: str) -> Iterator[JobText]:
    name = "<stdin>" if source == STANDARD_INPUT else source
    with _opened(source) as stream:
        number, line = 1, _line(stream, source).removeprefix(codecs.BOM_UTF8)
        while line and not line.strip():
            number, line = number + 1, _line(stream, source)
        start = line.lstrip()[:1]
        if source.endswith((".yaml", ".yml")) or start not in {b"{", b"["}:
            yield from _yaml(name, number - 1, _whole(stream, source, line))
        elif start == b"{" and _is_whole(line):
            yield from _lines(name, number, [line], stream, source)
        else:
            second = b"" if start == b"[" or line.strip() == b"{" else _line(stream, source)
            if _is_job(second):  # JSON lines with an invalid first line
                yield from _lines(name, number, [line, second], stream, source)
            else:
                yield from _values(name, number, _whole(stream, source, line + second))


@contextmanager
def _opened(source: str, path: str = "FILE") -> Generator[BinaryIO]:
    try:
        if source == STANDARD_INPUT:
            yield sys.stdin.buffer
            return
        with Path(source).open("rb") as stream:
            yield stream
    except OSError as error:
        refuse(path, f"{source} cannot be read ({error.strerror})", "name a file, or - for standard input")


def _line(stream: BinaryIO, source: str) -> bytes:
    line = stream.readline(MAX_WHOLE_BYTES + 1)
    _ensure_short(line, source)
    return line


def _whole(stream: BinaryIO, source: str, start: bytes) -> bytes:
    data = start + stream.read(MAX_WHOLE_BYTES + 1 - min(len(start), MAX_WHOLE_BYTES))
    _ensure_short(data, source)
    return data


def _ensure_short(data: bytes, source: str) -> None:
    if len(data) > MAX_WHOLE_BYTES:
        problem = f"{source} has more than {MAX_WHOLE_BYTES} bytes, too many to read at once"
        refuse("FILE", problem, "write one JSON object per line, or split the file")


def _is_whole(line: bytes) -> bool:
    """Return True if a line is a whole JSON object, not the beginning of one."""
    try:
        return as_object(json.loads(line)) is not None
    except (ValueError, RecursionError):
        return line.rstrip().endswith(b"}") and line.lstrip().startswith(b"{")


def _is_job(line: bytes) -> bool:
    """Return True if a line is a whole job, not a part of one, such as its target."""
    try:
        return "key" in (as_object(json.loads(line)) or ())
    except (ValueError, RecursionError):
        return False


def _lines(name: str, number: int, first: list[bytes], stream: BinaryIO, source: str) -> Iterator[JobText]:
    read = 0
    while line := first.pop(0) if first else _line(stream, source):
        read += len(line)
        if stripped := line.strip():
            yield JobText(f"{name}:{number}", stripped, read)
        number += 1


def _values(name: str, number: int, data: bytes) -> Iterator[JobText]:
    """Yield the objects of an array or of a sequence, each as its text with its first line's number."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield JobText(f"{name}:{number}", _no_job(f"not valid UTF-8: {error.reason}"), len(data))
        return
    at, counted, first = 0, 0, True
    if listed := text.lstrip().startswith("["):
        at = text.index("[") + 1
    while True:
        at, fault = _next_listed(text, at, first=first) if listed else (_after_blanks(text, at), None)
        number, counted = number + text.count("\n", counted, at), at
        if fault is not None:
            yield JobText(f"{name}:{number}", fault, len(data))
        if fault is not None or at == len(text):
            return
        try:
            _, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            problem = f"not valid JSON: {error}" if isinstance(error, ValueError) else _TOO_DEEP
            yield JobText(f"{name}:{number}", _no_job(problem), len(data))
            return
        yield JobText(f"{name}:{number}", text[at:end].encode("utf-8", "surrogatepass"), len(data) * end // len(text))
        at, first = end, False


def _next_listed(text: str, at: int, *, first: bool) -> tuple[int, FieldError | None]:
    """Return the start of an array's next element, or the end of the array; or the error and its place."""
    at = _after_blanks(text, at)
    if text.startswith("]", at):
        at = _after_blanks(text, at + 1)
        return at, None if at == len(text) else _BEHIND
    if not first and at < len(text):
        if text[at] != ",":
            return at, _COMMA
        at = _after_blanks(text, at + 1)
    if at == len(text):
        return len(text.rstrip()), _CUT_OFF
    return at, _COMMA if text[at] in ",]" else None


def _after_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def _yaml(name: str, before: int, data: bytes) -> Iterator[JobText]:
    try:
        text = data.decode()
        loader = JobLoader(text)
        while loader.check_node():
            for one in _composed(loader):
                place = f"{name}:{before + one.start_mark.line + 1}"
                ensure_bounded(one)
                found = as_object(cast("object", loader.construct_document(one)))  # pyright: ignore[reportUnknownMemberType]
                content = _no_job("is not a mapping") if found is None else found
                yield JobText(place, content, len(data) * one.end_mark.index // len(text))
    except UnicodeDecodeError as error:
        yield JobText(f"{name}:{before + 1}", _no_job(f"not valid UTF-8: {error.reason}"), len(data))
    except RecursionError:
        yield JobText(f"{name}:{before + 1}", _no_job(_TOO_DEEP), len(data))
    except yaml.YAMLError as error:
        problem, remedy, line = _yaml_error(error, before)
        yield JobText(f"{name}:{line}", FieldError("", problem, remedy), len(data))


def _yaml_error(error: yaml.YAMLError, before: int = 0) -> tuple[str, str, int]:
    """Return the problem, its remedy and its line, after `before` lines of the file.

    >>> _yaml_error(yaml.scanner.ScannerError(None, None, "no", yaml.error.Mark("", 0, 1, 12, None, 0)))[0]
    'not valid YAML at line 2, column 13: no'
    """
    if not isinstance(error, yaml.MarkedYAMLError):
        reason = error.reason if isinstance(error, yaml.reader.ReaderError) else "cannot be read"
        return f"not valid YAML: {reason}", "remove control characters", before + 1
    mark, begin = error.problem_mark or error.context_mark, error.context_mark
    line, problem = before + (mark.line + 1 if mark else 1), error.problem or "cannot be read"
    at = f" at line {line}, column {mark.column + 1}" if mark else ""
    text = f"not valid YAML{at}: {problem}"
    opened = ""
    if error.context and begin and mark and begin.index != mark.index:
        opened = f"line {before + begin.line + 1}, column {begin.column + 1}"
        text = f"{text} {error.context}, which begins at {opened}"
    if not error.context and isinstance(error, yaml.constructor.ConstructorError):
        return text, REMEDY, line
    remedies = (
        ("'\\t'" in problem, "indent with spaces, not with a tab"),
        ("cannot start any token" in problem, "put the value in quotes"),
        ("quoted scalar" in (error.context or ""), f"close the quote that opens at {opened or 'this place'}"),
        ("mapping values are not allowed" in problem, "put a value with a colon in quotes, or correct the indentation"),
        ("could not find expected ':'" in problem, "write `name: value`, with a space after the colon"),
    )
    fitting = (remedy for fits, remedy in remedies if fits)
    return text, next(fitting, "correct the brackets, quotes or indentation here"), line


def _composed(loader: JobLoader) -> Iterator[yaml.Node]:
    """Compose the jobs of the next document one at a time: nodes take a hundred times their text."""
    loader.next_event()  # the document's start
    listed = loader.check_event(yaml.SequenceStartEvent)
    if listed:
        loader.next_event()
    while not loader.check_event(yaml.SequenceEndEvent, yaml.DocumentEndEvent):
        loader.composed = 0
        node = cast("yaml.Node", loader.compose_node(None, 0))
        is_empty = isinstance(node, yaml.ScalarNode) and node.tag == NULL  # a `---` too many makes such a document
        if listed or not is_empty:
            yield node
    if listed:
        loader.next_event()
    loader.next_event()
    loader.anchors = {}


def _no_job(problem: str) -> FieldError:
    return FieldError("", problem, REMEDY)

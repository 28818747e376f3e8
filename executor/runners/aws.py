"""Invoke AWS Lambda functions and wait for their responses.

boto3 is an extra and is imported with the first invocation. An executor without it leaves such runs to other executors.
The job's policy makes the retries, boto makes none. An invocation cannot be recalled: after a timeout, a cancellation
or a shutdown it ends by itself, and its response is ignored.
"""

import asyncio
import base64
import io
import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Protocol, TypedDict, cast

from tidewheel.executor.attempt import Attempt
from tidewheel.executor.lease import Lease, LeaseOver
from tidewheel.executor.outcome import NOT_STARTED, Outcome, failed, succeeded
from tidewheel.executor.runners.runner import retry_after
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import MAX_RESULT_BYTES
from tidewheel.schemas.generated.records import LambdaTarget
from tidewheel.turns import SharedThreads

_CONNECT_SECONDS = 5
_LONGEST_SECONDS = 1024  # AWS ends an invocation after 15 minutes at the latest. Source: Lambda quotas, "Timeout"
_THREADS = 400  # invocations at once; a tenant that is alone has half, as many as the HTTP client keeps connections
_NO_EVENT = b"{}"  # as AWS passes to a function that is invoked without an event
_CUT_CHARACTERS = 8192  # each takes at most 6 bytes as JSON: 48 KiB together
_PIECE_BYTES = 16 * 1024  # sent after one look at the lease
_THROTTLED = timedelta(seconds=1)  # if the response names no delay
_RETRIED_4XX = frozenset({408, 409, 425, 429})  # 409: the function is being updated

# Errors before anything was sent; by name, since boto3 may not be installed.
_NOT_SENT = frozenset(
    ("ConnectTimeoutError", "CredentialRetrievalError", "EndpointConnectionError", "NoCredentialsError",
     "NoRegionError", "ParamValidationError", "PartialCredentialsError", "ProxyConnectionError")
)  # fmt: skip
_NEVER_SENT = frozenset(("NoRegionError", "ParamValidationError"))


class _Stream(Protocol):
    def read(self, amt: int) -> bytes: ...

    def close(self) -> None: ...


class _Response(TypedDict, total=False):
    Payload: _Stream
    FunctionError: str
    LogResult: str


class _Client(Protocol):
    def invoke(self, **request: object) -> _Response: ...

    def close(self) -> None: ...


class _Session(Protocol):
    def client(self, name: str, *, region_name: str | None, config: object) -> _Client: ...


class _Event(io.BytesIO):
    """The event of an invocation, of which boto reads each piece shortly before it sends it.

    Credentials, names, connections and TLS come before, and may take seconds. Without its event no function is invoked.
    """

    def __init__(self, content: bytes, lease: Lease) -> None:
        super().__init__(content)
        self._lease, self.refused = lease, False

    def read(self, size: int | None = -1, /) -> bytes:
        piece = _Piece(super().read(_PIECE_BYTES if size is not None and size > _PIECE_BYTES else size))
        if piece:
            self.look()  # also before boto connects: it signs the whole event
        piece.event = self
        return piece

    def look(self) -> None:
        # Threads that wait for the interpreter's lock have it now, and not between the look and a send.
        time.sleep(0)  # noqa: TID251 - waits for nothing
        if self._lease.is_over():
            self.refused = True
            raise LeaseOver


class _Piece(bytes):
    """A piece of an event, which is a file too.

    `http.client` reads a file, and so looks at the lease, right before `sendall`. Between a look at each read of the
    event and that call lay a dozen of boto's calls. Under load that was long enough for two of a thousand stops.
    """

    event: _Event
    _is_read = False

    def read(self, _size: int = -1, /) -> bytes:
        """Return it whole, then nothing."""
        if self._is_read:
            return b""
        self._is_read = True
        self.event.look()
        return self


class LambdaRunner:
    """Invokes Lambda functions."""

    def __init__(self, allow_lists: AllowLists) -> None:
        self._allow_lists = allow_lists
        self._threads = SharedThreads(_THREADS, "lambda")
        self._session: _Session | None = None
        self._clients: dict[tuple[str | None, int], _Client] = {}
        self._lock = threading.Lock()  # sessions are not thread-safe, clients are

    async def run(self, attempt: Attempt) -> Outcome:
        """Invoke the function and return the outcome of its response."""
        target = attempt.definition.target.aws_lambda
        if target is None:
            return failed("InvalidTarget", "the job's version has no function", permanent=True, not_started=True)
        try:
            self._allow_lists.check_function(target.function, target.qualifier, target.region)
        except InvalidValue as refusal:
            return failed("FunctionRefused", str(refusal), permanent=True, not_started=True)
        future = self._threads.submit(attempt.definition.tenant, partial(self._invoke, attempt, target))
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if not future.cancel():
                attempt.release_with(future)
            raise

    async def close(self) -> None:
        """Stop idle threads; busy ones end with the process."""
        self._threads.close()
        for client in self._clients.values():
            client.close()

    def _invoke(self, attempt: Attempt, target: LambdaTarget) -> Outcome:
        event = _Event(_event(attempt) or _NO_EVENT, attempt.lease)
        request: dict[str, object] = {
            "Payload": event,
            "FunctionName": target.function,
            "InvocationType": "RequestResponse",
            "LogType": "Tail",
            "ClientContext": _context(attempt),
        }
        if target.qualifier is not None:
            request["Qualifier"] = target.qualifier
        try:
            response = self._client(target, attempt.start_to_close_seconds).invoke(**request)
            return _judge(attempt, response)
        except Exception as error:  # noqa: BLE001 - any exception of boto is the attempt's outcome
            return NOT_STARTED if event.refused else _refused(error)

    def _client(self, target: LambdaTarget, seconds: float) -> _Client:
        """Return the client for a region with at least this read timeout; it keeps its connections."""
        key = _region(target), _at_least(seconds)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = self._make_client(*key)
            return self._clients[key]

    def _make_client(self, region: str | None, seconds: int) -> _Client:
        if self._session is None:
            self._session = cast("_Session", import_module("boto3.session").Session())
        config = import_module("botocore.config").Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=seconds,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=_THREADS,
            tcp_keepalive=True,
        )
        return self._session.client("lambda", region_name=region, config=config)


def _region(target: LambdaTarget) -> str | None:
    if target.region is None and target.function.startswith("arn:"):
        return target.function.split(":")[3]
    return target.region


def _at_least(seconds: float) -> int:
    """Return a power of two above `seconds`, so that a few clients serve every timeout.

    >>> [_at_least(seconds) for seconds in (0.2, 4, 300, 86_400)]
    [2, 8, 512, 1024]
    """
    return min(1 << (int(seconds) + 1).bit_length(), _LONGEST_SECONDS)


def _context(attempt: Attempt) -> str:
    """Return the client context with the run: `context.client_context.custom` in a Python function."""
    custom = {
        "run_id": attempt.request.run_id,
        "attempt": str(attempt.started.attempt),
        "idempotency_key": attempt.request.run_id,
        "scheduled_at": attempt.request.scheduled_at.isoformat(),
    }
    return base64.b64encode(json.dumps({"custom": custom}).encode()).decode()


def _event(attempt: Attempt) -> bytes:
    """Return the payload as an event; bytes become base64, since events are JSON."""
    if attempt.payload_content_type == "application/json":
        return attempt.payload
    return json.dumps({"payload_base64": base64.b64encode(attempt.payload).decode()}).encode()


def _judge(attempt: Attempt, response: _Response) -> Outcome:
    stream = response.get("Payload")
    body = b"" if stream is None else stream.read(MAX_RESULT_BYTES + 1)
    if stream is not None:
        stream.close()  # the rest is not read
    if log := response.get("LogResult"):
        with suppress(ValueError):  # the function has run: its log decides nothing
            attempt.write(base64.b64decode(log, validate=True))
    if "FunctionError" in response:
        return _failure(body)
    return succeeded(_result(body))


def _result(body: bytes) -> bytes | None:
    """Return the function's result; a long one is cut, since its effect is done."""
    if not body:
        return None
    text = body.decode("utf-8", "replace").replace("\0", "\ufffd")
    if len(body) > MAX_RESULT_BYTES:
        return json.dumps({"body": text[:_CUT_CHARACTERS], "cut": True}).encode()
    try:
        json.loads(body, parse_constant=_no_number)
    except ValueError:
        return json.dumps({"body": text[:_CUT_CHARACTERS], "cut": len(text) > _CUT_CHARACTERS}).encode()
    return body


def _no_number(text: str) -> None:
    raise ValueError(text)


def _failure(body: bytes) -> Outcome:
    """Return the outcome of a function error. Source: Lambda developer guide, "Function errors"."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return failed("FunctionError", body.decode("utf-8", "replace"))
    error = cast("Mapping[str, object]", document)
    frames = error.get("stackTrace")
    trace = "\n".join(str(frame) for frame in cast("list[object]", frames)) if isinstance(frames, list) else ""
    return failed(str(error.get("errorType") or "FunctionError"), str(error.get("errorMessage") or ""), trace=trace)


class _ErrorDetail(TypedDict):
    Code: str
    Message: str


class _Metadata(TypedDict, total=False):
    HTTPStatusCode: int
    HTTPHeaders: Mapping[str, str]


class _Refusal(TypedDict, total=False):
    Error: _ErrorDetail
    ResponseMetadata: _Metadata


def _refused(error: Exception) -> Outcome:
    """Return the outcome of an invocation without a response of the function."""
    name = type(error).__name__
    response = cast("_Refusal | None", getattr(error, "response", None))
    if not response:
        return failed(name, str(error), permanent=name in _NEVER_SENT, not_started=name in _NOT_SENT)
    detail, metadata = response.get("Error"), response.get("ResponseMetadata", {})
    code, message = (detail.get("Code", name), detail.get("Message", "")) if detail else (name, str(error))
    status = metadata.get("HTTPStatusCode", 500)
    refused = 400 <= status < 500  # before it was invoked
    after = retry_after(metadata.get("HTTPHeaders", {})) if status == 429 else None
    if status == 429 and after is None:
        after = _THROTTLED
    permanent = refused and status not in _RETRIED_4XX
    return failed(code, message, permanent=permanent, retry_after=after, not_started=refused)

"""Steps of a handler: their results, kept in the run's checkpoint beside the handler's own.

A step that has finished and is saved is not repeated by a later attempt: it gets the saved result. A checkpoint that
holds steps is a JSON object whose first name is `tidewheel.steps`.
"""

import json
import threading
from collections.abc import Callable

from pydantic_core import PydanticSerializationError, to_json

from tidewheel.errors import Permanent
from tidewheel.jobs.strict_json import strict_json
from tidewheel.jobs.values import MAX_RESULT_BYTES, MAX_TEXT

_STEPS, _OWN = "tidewheel.steps", "checkpoint"
_HEAD = f'{{"{_STEPS}":'.encode()


class Steps:
    """The finished steps of a run, and its handler's own checkpoint; safe from every thread."""

    def __init__(self, checkpoint: bytes | None) -> None:
        self._done, self._own = dict[str, bytes](), checkpoint
        if has_steps(checkpoint):
            document = json.loads(checkpoint or b"")
            self._done = {name: to_json(result) for name, result in document[_STEPS].items()}
            self._own = to_json(document[_OWN]) if _OWN in document else None
        self._used = set[str]()
        self._lock = threading.Lock()

    def begin(self, name: str) -> bytes | None:
        """Take a name; return the saved result of an earlier attempt as JSON, None if the step must run."""
        if not 1 <= len(name) <= MAX_TEXT:
            message = f"the name of a step has 1 to {MAX_TEXT} characters, this one has {len(name)}"
            raise ValueError(message)
        with self._lock:
            if name in self._used:
                message = f"step {name!r} was used before in this attempt; give each step a name of its own"
                raise ValueError(message)
            self._used.add(name)
            return self._done.get(name)

    def finish(self, name: str, result: object, save: Callable[[bytes], None]) -> bytes:
        """Add a step's result and pass the checkpoint on; return the result as JSON, or raise Permanent."""
        try:
            text = strict_json(result)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            message = f"the result of step {name!r} cannot be serialized to JSON ({error}); return plain values"
            raise Permanent(message) from error
        with self._lock:
            checkpoint = self._checkpoint(self._done | {name: text}, self._own)
            if len(checkpoint) > MAX_RESULT_BYTES:
                message = (
                    f"the result of step {name!r} has {len(text)} bytes as JSON, and brings the run's checkpoint to"
                    f" {len(checkpoint)}, more than {MAX_RESULT_BYTES}; store it elsewhere and return its address"
                )
                raise Permanent(message)
            self._done[name] = text
            save(checkpoint)
        return text

    def keep(self, own: bytes, save: Callable[[bytes], None]) -> None:
        """Replace the handler's own checkpoint, and pass the whole on; change nothing if it is too large."""
        with self._lock:
            checkpoint = self._checkpoint(self._done, own)
            if len(checkpoint) > MAX_RESULT_BYTES:
                message = (
                    f"checkpoint and finished steps have {len(checkpoint)} bytes as JSON, more than"
                    f" {MAX_RESULT_BYTES}; store the data elsewhere and checkpoint its address"
                )
                raise ValueError(message)
            self._own = own
            save(checkpoint)

    @staticmethod
    def _checkpoint(done: dict[str, bytes], own: bytes | None) -> bytes:
        steps = b",".join(to_json(name) + b":" + result for name, result in done.items())
        rest = b"" if own is None else b',"%b":%b' % (_OWN.encode(), own)
        return b"%b{%b}%b}" % (_HEAD, steps, rest)


def has_steps(checkpoint: bytes | None) -> bool:
    """Return True for a checkpoint that holds steps."""
    return checkpoint is not None and checkpoint.startswith(_HEAD)


def own_checkpoint(checkpoint: bytes | None) -> object:
    """Return the handler's own checkpoint as plain values; None if there is none."""
    if checkpoint is None:
        return None
    value = json.loads(checkpoint)
    return value.get(_OWN) if has_steps(checkpoint) else value

"""The files of a stack's folder: `stack.json`, private files, and the lock of one process at a time.

Invariant: all parameters of a part are written before the part is created. The next `up` can therefore adopt what a
crash leaves behind, and the next `down` can remove it. Pids are not here: `tidewheel.local.daemon` records them.
"""

import base64
import fcntl
import os
import secrets
import uuid
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs
from pydantic import BaseModel, ValidationError

from tidewheel.errors import StackError
from tidewheel.local.broker_config import KafkaPasswords, Node
from tidewheel.local.daemon import answers, free_port

HOME_VARIABLE = "TIDEWHEEL_HOME"

STATE_FILE = "stack.json"
API_HEADERS_FILE = "api-headers"
"""The header with which curl opens the API of `tidewheel dev`: `curl -H @FILE`."""

API_TOKEN_FILE = "api-token"  # noqa: S105 - the name of a file
"""The token of executors in other languages."""

DEV_FILE = "dev.lock"
"""Names the `tidewheel dev` of the stack, which holds a lock of the file."""


def write_private(path: Path, text: str) -> None:
    """Replace a file by one with mode 0600, which is never seen half-written nor with other rights."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123 - a descriptor
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Lock the file at `path`; wait for its owner. A process that dies releases the lock."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def default_home() -> Path:
    """Return the stack's default home: `TIDEWHEEL_HOME`, else the user's data folder."""
    named = os.environ.get(HOME_VARIABLE)
    return Path(named) if named else platformdirs.user_data_path("tidewheel")


class Dev(BaseModel):
    """The content of `dev.lock`.

    Args:
        owns_stack: True if it has started the stack, and stops it.
        variables: Those of its environment that clients need too.
    """

    pid: int
    folder: str
    owns_stack: bool = False
    variables: dict[str, str] = {}


def living_dev(home: Path) -> Dev | None:
    """Return the `tidewheel dev` that lives and starts the parts of the stack in `home`.

    It reads the pid and takes no lock: a reader with the lock would keep a `dev` from its start.
    """
    try:
        dev = Dev.model_validate_json((home / DEV_FILE).read_bytes())
        with suppress(PermissionError):  # it is another user's
            os.kill(dev.pid, 0)
    except (OSError, ValidationError):
        return None
    return dev


class StackState(BaseModel, frozen=True):
    """The content of `stack.json`.

    Args:
        postgres_port: Of the embedded database, of its primary if it has a standby.
        is_promoted: True if the primary is the server that was made as the standby.
    """

    password: str
    postgres_port: int
    standby_port: int | None = None
    is_promoted: bool = False
    cluster_id: str
    nodes: tuple[Node, ...]
    kafka_passwords: KafkaPasswords
    database_url: str | None = None
    bootstrap: str | None = None


def read_state(home: Path) -> StackState | None:
    """Return the stored state of the stack in `home`; None if there is none."""
    path = home / STATE_FILE
    try:
        return StackState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        remedy = f"`tidewheel down --erase --home {home}` removes the stack"
        message = f"{path} cannot be read ({type(error).__name__}); {remedy}"
        raise StackError(message) from error


def write_state(home: Path, state: StackState) -> None:
    """Put `state` in place of what was remembered, readable by the owner alone."""
    write_private(home / STATE_FILE, state.model_dump_json(indent=2))


def erase_state(home: Path) -> None:
    """Forget everything."""
    (home / STATE_FILE).unlink(missing_ok=True)


def new_state(brokers: int) -> StackState:
    """Return the state of a new stack: free ports and random passwords."""
    ports = free_ports(1 + 2 * brokers)
    return StackState(
        password=_new_password(),
        postgres_port=ports[0],
        cluster_id=base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="),
        nodes=_nodes(ports[1:]),
        kafka_passwords=KafkaPasswords(client=_new_password(), node=_new_password()),
    )


def with_free_postgres_port(state: StackState) -> StackState:
    """Return the state with another port if another process took the recorded one."""
    return state.model_copy(update={"postgres_port": free_port()}) if answers(state.postgres_port) else state


def with_free_standby_port(state: StackState) -> StackState:
    """Return the state with a port for a standby: the recorded one, unless another process took it."""
    if state.standby_port is not None and not answers(state.standby_port):
        return state
    return state.model_copy(update={"standby_port": free_port([state.postgres_port])})


def promoted(state: StackState) -> StackState:
    """Return the state in which the standby and the primary have changed places."""
    places = {"postgres_port": state.standby_port, "standby_port": state.postgres_port}
    return state.model_copy(update={**places, "is_promoted": not state.is_promoted})


def with_free_node_ports(state: StackState) -> StackState:
    """Return the state with other ports for all nodes if another process took one of theirs."""
    ports = [port for node in state.nodes for port in (node.port, node.controller_port)]
    if not any(answers(port) for port in ports):  # what is only in TIME_WAIT, a broker can listen on again
        return state
    return state.model_copy(update={"nodes": _nodes(free_ports(len(ports)))})


def free_ports(count: int) -> list[int]:
    """Several free ports, all different."""
    ports: list[int] = []
    while len(ports) < count:
        ports.append(free_port(ports))
    return ports


def _new_password() -> str:
    return secrets.token_urlsafe(24)  # letters, digits, - and _: no escapes in a URL or a properties file


def _nodes(ports: Iterable[int]) -> tuple[Node, ...]:
    pairs = zip(*[iter(ports)] * 2, strict=True)
    return tuple(Node(node_id=i, port=port, controller_port=other) for i, (port, other) in enumerate(pairs, start=1))

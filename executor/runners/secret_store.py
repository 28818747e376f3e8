"""Find the secrets of HTTP targets: in files of the job's tenant, else in the executor's environment.

A file is read again with the next call, at most once a second: secrets are replaced without a restart.
"""

import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tidewheel.clock import monotonic_seconds
from tidewheel.http_secrets import PREFIX, HttpSecret, environment_secrets, make_secret
from tidewheel.jobs.http_values import SECRET_NAME, TargetUrl
from tidewheel.jobs.values import is_tenant
from tidewheel.redaction import protect
from tidewheel.settings.executor import ExecutorSettings

_HOSTS = ".hosts"
_MAX_FILE = 64 * 1024  # of hosts; 200 names of the longest form
_LOOKS_APART = 1.0  # seconds; a replaced secret is sent from then on
_TRIES = 3  # a mounted folder is replaced at one instant: the second look is at the new one
_KEPT = 1000  # names that jobs invent must not fill the memory
_ENVIRONMENT_TENANT = "default"
_LINE_END = re.compile(r"\r?\n\Z")
_ADD = "add the hosts that may receive the secret, one per line"


class SecretMissing(Exception):
    """The executor does not have the secret, or cannot read it."""


class SecretRefused(Exception):
    """The secret must not be sent to this URL."""


class SecretStore:
    """The secrets of one executor: in a folder for each tenant; for `default` also of the environment."""

    def __init__(
        self,
        named: Mapping[str, HttpSecret] | None = None,
        folder: Path | None = None,
        *,
        seconds: Callable[[], float] = monotonic_seconds,
    ) -> None:
        self._named, self._folder, self._seconds = named or {}, folder, seconds
        self._looks: dict[tuple[str, str], _Look] = {}

    def value(self, tenant: str, name: str, url: TargetUrl) -> str:
        """Return the value of a header for a URL; raise SecretMissing if its files are not as they should be."""
        secret = self._find(tenant, name)
        if url.host.name not in secret.hosts:
            raise SecretRefused(
                f"secret {name} must not be sent to {url.host.name}; add the host where the executor has the secret:"
                f" in {PREFIX}{name}, or in the file {name}{_HOSTS} of tenant {tenant}"
            )
        if url.scheme != "https" and not url.host.is_local:
            raise SecretRefused(f"secret {name} is sent only by https, except to addresses of private networks")
        return secret.value

    def _find(self, tenant: str, name: str) -> HttpSecret:
        if not is_tenant(tenant) or not SECRET_NAME.fullmatch(name):  # both become parts of a path
            raise SecretMissing("the job's version does not name a secret; submit the job again")
        look = self._look(self._folder, tenant, name) if self._folder else _ABSENT
        if look.problem:
            raise SecretMissing(f"secret {name} of tenant {tenant} cannot be read: {look.problem}")
        secret = look.secret or (self._named.get(name) if tenant == _ENVIRONMENT_TENANT else None)
        if secret is None:
            raise SecretMissing(f"this executor has no secret {name} of tenant {tenant}; {_remedy(tenant, name)}")
        return secret

    def _look(self, folder: Path, tenant: str, name: str) -> "_Look":
        now = self._seconds()
        kept = self._looks.get((tenant, name))
        if kept is not None and now - kept.at < _LOOKS_APART:
            return kept
        if len(self._looks) >= _KEPT:
            self._looks.clear()
        made = self._looks[tenant, name] = _read(folder, tenant, name, now)
        return made


def secret_store(settings: ExecutorSettings) -> SecretStore:
    """Return the secrets of an executor with these settings."""
    return SecretStore(environment_secrets(os.environ), settings.secrets_dir)


_Mark: TypeAlias = tuple[int, int, int, int]


class _Look(NamedTuple):
    """A file as it was last read; no secret and no problem where there is no file."""

    at: float
    secret: HttpSecret | None = None
    problem: str = ""


class _Unusable(Exception):
    """The files of a secret are not as they should be."""


_ABSENT = _Look(0.0)


def _remedy(tenant: str, name: str) -> str:
    files = f"write the files {tenant}/{name} and {tenant}/{name}{_HOSTS} in the folder of TIDEWHEEL_SECRETS_DIR"
    return f"set {PREFIX}{name}, or {files}" if tenant == _ENVIRONMENT_TENANT else files


def _read(folder: Path, tenant: str, name: str, now: float) -> _Look:
    problem = ""
    for _ in range(_TRIES):
        try:
            before = _real_files(folder, tenant, name)
            value, hosts = (_content(path) for path, _ in before)
            if _real_files(folder, tenant, name) != before:  # one version's value must not meet another's hosts
                problem = f"{name} changed while it was read"
                continue
            lines = [line for line in hosts.decode().split("\n") if line.strip()]
            secret = make_secret(_LINE_END.sub("", value.decode("latin-1")), lines)
            protect(secret.value)
            return _Look(now, secret if lines else None, "" if lines else f"{name}{_HOSTS} is empty; {_ADD}")
        except FileNotFoundError as missing:  # also between two steps while the files are replaced
            problem = f"{name}{_HOSTS} is missing; {_ADD}" if str(missing.filename).endswith(_HOSTS) else ""
        except OSError as error:
            return _Look(now, problem=f"{name}: {error.strerror}")
        except (ValueError, _Unusable) as error:
            return _Look(now, problem=str(error))
    return _Look(now, problem=problem)


def _real_files(folder: Path, tenant: str, name: str) -> "tuple[tuple[Path, _Mark], ...]":
    """Return the real files of value and hosts, with marks that change with them.

    Links may lead elsewhere in the tenant's folder, as those of mounted Kubernetes secrets do, and nowhere else.
    """
    top = os.path.realpath(folder, strict=True)
    mine = Path(os.path.realpath(f"{top}/{tenant}", strict=True))
    found: list[tuple[Path, _Mark]] = []
    for file in (name, f"{name}{_HOSTS}"):
        real = Path(os.path.realpath(mine / file, strict=True))
        if not mine.is_relative_to(top) or not real.is_relative_to(mine):
            raise _Unusable(f"{file} points outside the tenant's folder; put the file itself there")
        read = real.stat()
        found.append((real, (read.st_ino, read.st_mtime_ns, read.st_ctime_ns, read.st_size)))
    return tuple(found)


def _content(path: Path) -> bytes:
    # Not blocked by a pipe, and not led astray by a link that was made meanwhile.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise _Unusable(f"{path.name} is not a file")
        content = file.read(_MAX_FILE + 1)
    if len(content) > _MAX_FILE:
        raise _Unusable(f"{path.name} has more than {_MAX_FILE} bytes")
    return content

"""Settings of executors; the API, which serves executors in other languages, shares some of them."""

import ssl
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from tidewheel.http_secrets import read_secrets
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.values import format_duration
from tidewheel.settings.connections import Connections
from tidewheel.settings.sources import Duration, Entries

_NOT_PASSED: Final = ("TIDEWHEEL_", "PG", "AWS_")  # passwords, tokens and keys

# Shared by executors and the API, which serves executors in other languages.
LEASE: Final[timedelta] = Field(
    timedelta(seconds=15),
    gt=timedelta(0),
    description="an executor without a heartbeat for this long loses its attempts; the longer lease applies: its own "
    "or the observer's",
)
SWEEP: Final[timedelta] = Field(
    timedelta(seconds=1),
    gt=timedelta(0),
    description="executors claim a run from the table, without its message, once it is overdue by this long",
)
MESSAGE_SIGNATURES: Final[Literal["refuse", "warn"]] = Field(
    "refuse",
    description="what happens to a run message that no relay has signed: `refuse` leaves it to the sweep; `warn` uses "
    "it, while relays are upgraded that do not sign yet; both count it",
)
MAX_LOST: Final[int] = Field(10, ge=1, description="a run fails after this many lost executors")


class ExecutorSettings(Connections):
    """Settings of executors."""

    queues: str = Field("default", description="the queues served, separated by commas")
    targets: Entries = Field(
        ("handler", "http"),
        description=f"types of targets that this executor runs: {', '.join(TARGETS)}; it lends jobs its "
        "rights, so name what jobs need; runs of other types wait for an executor that runs them",
    )
    handlers: str | None = Field(None, description="modules with handlers to import, separated by commas")
    slots: int | None = Field(None, ge=1, le=10000, description="most runs at once; default 100, of which 8 on threads")
    threads: int = Field(8, ge=1, le=1000, description="most synchronous handlers at once")
    worker_processes: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="worker processes for isolated handlers, 60 MB each; default: the number of CPUs, at least 2",
    )
    worker_memory_bytes: int | None = Field(
        None,
        ge=128 << 20,
        description="limit on the address space of a worker process; libraries reserve more than they use",
    )
    stall_after: Duration = Field(
        timedelta(seconds=1),
        ge=timedelta(milliseconds=100),
        description="an event loop blocked for this long is logged, and its queued runs are released",
    )
    executor_group: Literal["auto", "consumer", "classic"] = Field(
        "auto",
        description="Kafka group protocol, checked at start; auto takes `consumer` (KIP-848) where takeover is quick "
        "enough, else `classic`",
    )
    heartbeat: Duration = Field(
        timedelta(seconds=5), gt=timedelta(0), description="interval of the heartbeats that renew the lease"
    )
    lease: Duration = LEASE
    sweep: Duration = SWEEP
    message_signatures: Literal["refuse", "warn"] = MESSAGE_SIGNATURES
    drain_timeout: Duration = Field(
        timedelta(seconds=30),
        ge=timedelta(0),
        description="time for running attempts to end after SIGTERM; then they are released",
    )
    log_runs: bool = Field(
        default=False, description="log a line for each attempt that ends, not for failures alone; `tidewheel dev` does"
    )
    log_errors: bool = Field(
        default=True,
        description="log the message and traceback of a failure, which may contain a payload; without, a line has the "
        "type of the error, and the run's attempt has the rest",
    )
    max_lost: int = MAX_LOST
    cancel_grace: Duration = Field(
        timedelta(seconds=10),
        ge=timedelta(0),
        description="time for an attempt to end after its cancel is requested; then it ends without its report",
    )
    http_ca_file: Path | None = Field(
        None, description="PEM file of an internal authority; HTTP targets may use its certificates besides public ones"
    )
    webhook_secrets: SecretStr | None = Field(
        None,
        description="secrets that sign HTTP requests, each for one host: `host=whsec_…`, separated by blanks; several "
        "for one host, for rotation, all sign",
    )
    secrets_dir: Path | None = Field(
        None,
        description="folder of the secrets that jobs name in headers of HTTP targets: a folder for each tenant, with a "
        "file for the value and one of that name with `.hosts`; each change holds for the next calls",
    )
    shell_env: str = Field(
        "PATH,HOME,LANG,TZ",
        description="environment variables of the executor that shell targets inherit, separated by commas",
    )
    shell_memory_bytes: int | None = Field(
        None,
        ge=1 << 20,
        description="limit on the address space of each process of a shell target; Java, Go and node reserve far more "
        "than they use",
    )
    shell_cpu_seconds: int | None = Field(
        None, ge=1, description="limit on the CPU time of each process of a shell target"
    )
    shell_processes: int = Field(
        4096,
        ge=1,
        description="a shell target starts no process while the executor's user has this many processes and threads; "
        "not enforced for root",
    )
    shell_file_bytes: int = Field(10 << 30, ge=0, description="largest file that a shell target may write: 10 GiB")

    @field_validator("lease")
    @classmethod
    def _outlasts_a_heartbeat(cls, lease: timedelta, info: ValidationInfo) -> timedelta:
        """Refuse a lease that would be over before the next heartbeat."""
        heartbeat = info.data.get("heartbeat")
        if isinstance(heartbeat, timedelta) and lease <= heartbeat:
            raise ValueError(
                f"must be longer than TIDEWHEEL_HEARTBEAT, {format_duration(heartbeat)}; three times as long is good"
            )
        return lease

    @field_validator("http_ca_file")
    @classmethod
    def _has_certificates(cls, file: Path | None) -> Path | None:
        """Refuse a file without a certificate: each call would fail."""
        if file is not None:
            try:
                ssl.create_default_context(cafile=file)
            except OSError as error:  # ssl.SSLError is one
                raise ValueError(f"has no PEM certificate: {error.strerror or error}; name a readable file") from None
        return file

    @field_validator("secrets_dir")
    @classmethod
    def _is_a_folder(cls, folder: Path | None) -> Path | None:
        """Refuse what is no folder: each call with a secret would fail."""
        try:
            is_folder = folder is None or folder.is_dir()
        except OSError:  # a path that is too long
            is_folder = False
        if not is_folder:
            raise ValueError("is not a folder; correct the path or unset the variable")
        return folder

    @field_validator("webhook_secrets")
    @classmethod
    def _are_secrets(cls, written: SecretStr | None) -> SecretStr | None:
        """Refuse a secret that receivers could not verify signatures with."""
        read_secrets(written.get_secret_value() if written else "")
        return written

    @field_validator("shell_env")
    @classmethod
    def _lets_no_secret_through(cls, listed: str) -> str:
        """Refuse the names of the executor's own passwords and keys."""
        for name in listed.split(","):
            if name.strip().upper().startswith(_NOT_PASSED):
                raise ValueError(f"{name.strip()} is reserved for the executor; set a job's variables in its env")
        return listed

"""Allow-lists of targets: hosts, ports, topics, functions, programs and folders that jobs may name.

A refusal is an `InvalidValue`, so that intake adds the field's path and an executor's outcome has the same text. Intake
refuses early, by its own settings. The executor that runs the target enforces.
"""

import posixpath
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tidewheel.jobs.http_values import Host, TargetUrl, read_host, read_ipv6
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import shown

ANY = "*"
MORE = "..."  # at the end of a program's patterns: any further arguments
_INTERNAL = "__"  # first part of __consumer_offsets, __transaction_state, __share_group_state, __cluster_metadata
_MAX_PATH = 4096  # Source: limits.h, PATH_MAX
_WEB_PORTS = frozenset((80, 443))


def path_problem(path: str) -> str | None:
    """Return what is wrong with a path; None if it is absolute and in its shortest form.

    >>> path_problem("/usr/bin/make"), path_problem("/srv/../bin/sh")
    (None, "'/srv/../bin/sh' contains '.', '..' or '//', or ends with '/'")
    """
    if not path.startswith("/") or "\0" in path or len(path) > _MAX_PATH:
        return f"{shown(path)} is not an absolute path"
    if path.startswith("//") or posixpath.normpath(path) != path:
        return f"{shown(path)} contains '.', '..' or '//', or ends with '/'"
    return None


@dataclass(frozen=True, slots=True)
class ProgramPattern:
    """One allowed command line: an absolute path or `*` for any, with any further arguments if `more`."""

    program: str
    arguments: tuple[str, ...] = ()
    more: bool = False

    @classmethod
    def read(cls, entry: str) -> "ProgramPattern":
        """Return the pattern of one entry of the list: a program, then patterns as a shell would split them.

        >>> ProgramPattern.read("/usr/bin/backup --name=* [0-9]*").allows(["/usr/bin/backup", "--name=a", "7"])
        True
        """
        program, *arguments = shlex.split(entry) or [""]
        if program == ANY and not arguments:
            return cls(ANY, (), more=True)
        if problem := path_problem(program):
            raise ValueError(f"{problem}; begin each entry with the absolute path of a program")
        if re.search(r"[*?\[]", program):
            message = f"{shown(program)} is a pattern; name each program, and use patterns only for its arguments"
            raise ValueError(message)
        more = arguments[-1:] == [MORE]
        if MORE in (arguments[:-1] if more else arguments):
            raise ValueError(f"{MORE!r} must be the last word of {shown(entry)}; it means any further arguments")
        return cls(program, tuple(arguments[:-1] if more else arguments), more)

    def allows(self, argv: Sequence[str]) -> bool:
        """Return True if the whole command line matches."""
        if not argv or self.program not in (ANY, argv[0]):
            return False
        given = argv[1:]
        fits = len(given) >= len(self.arguments) if self.more else len(given) == len(self.arguments)
        return fits and all(map(fnmatchcase, given, self.arguments))


def read_host_pattern(text: str) -> str:
    """Return a host pattern as hosts are compared: `*`, a name, `*.` and a name, or an address.

    >>> read_host_pattern("*.B\u00fccher.example."), read_host_pattern("0x7f.1"), read_host_pattern("[::1]")
    ('*.xn--bcher-kva.example', '127.0.0.1', '::1')
    """
    if text == ANY:
        return ANY
    if text.startswith("[") and text.endswith("]"):
        return read_ipv6(text[1:-1]).text
    below = text.startswith("*.")
    host = read_host(text.removeprefix("*."))
    if below and host.address is not None:
        raise ValueError(f"{shown(text)} is not a pattern of names; write only the address")
    return f"*.{host.name}" if below else host.name


def read_port(text: str) -> int | None:
    """Return a port; None for `*`, which is any."""
    if text == ANY:
        return None
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or not 1 <= int(text) <= 65535:
        raise ValueError(f"{shown(text)} is not a port; write 1 to 65535, or * for any")
    return int(text)


def read_folder(text: str) -> str:
    """Return a folder; ValueError unless it is absolute and in its shortest form."""
    if problem := path_problem(text):
        raise ValueError(problem)
    return text


def is_within(path: str, folder: str) -> bool:
    """Return True if a path is a folder, or is below it.

    >>> is_within("/srv/a", "/srv"), is_within("/srv2", "/srv")
    (True, False)
    """
    return posixpath.commonpath((path, folder)) == folder


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowLists:
    """The allow-lists that one process has.

    Args:
        enforces: True in an executor: an empty list of topics, functions or programs allows none. Elsewhere such a list
            is unknown, and everything passes.
        topic_prefix: First part of the installation's own topics, which no job writes to.
        ports: Allowed ports; None is any.
        folders: Working directories, with all below them.
    """

    enforces: bool = False
    topic_prefix: str = "tidewheel"
    allow_private: bool = False
    hosts: tuple[str, ...] = (ANY,)
    ports: frozenset[int] | None = _WEB_PORTS
    topics: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    programs: tuple[ProgramPattern, ...] = ()
    folders: tuple[str, ...] = ()
    variables: Collection[str] = ()

    def check_url(self, url: TargetUrl) -> None:
        """Check the host and the port of an HTTP target."""
        if not self.allow_private and url.host.is_local:
            problem = f"{url.host.text} is an address that targets must not reach"
            raise InvalidValue(problem=problem, remedy="set TIDEWHEEL_HTTP_ALLOW_PRIVATE to allow it", path="url")
        if ANY not in self.hosts and not any(_host_matches(url.host, pattern) for pattern in self.hosts):
            problem = f"{url.host.text} is not a host that jobs may call"
            raise InvalidValue(problem=problem, remedy="use a host that TIDEWHEEL_HTTP_HOSTS allows", path="url")
        if self.ports is not None and url.called_port not in self.ports:
            problem = f"{url.called_port} is not a port that jobs may call"
            raise InvalidValue(problem=problem, remedy="use a port that TIDEWHEEL_HTTP_PORTS allows", path="url")

    def is_own_topic(self, topic: str) -> bool:
        """Return True for a topic of the installation, also in another spelling.

        Kafka takes '.' and '_' for the same character where it names metrics, so no topic may differ in these alone.
        """
        name, prefix = (text.lower().replace("_", ".") for text in (topic, self.topic_prefix))
        return name == prefix or name.startswith(f"{prefix}.")

    def check_topic(self, topic: str) -> None:
        """Check the topic of a Kafka target."""
        if self.is_own_topic(topic):
            problem = f"{topic} is one of Tidewheel's own topics"
            remedy = f"name one that does not begin with {self.topic_prefix!r}"
            raise InvalidValue(problem=problem, remedy=remedy, path="topic")
        if topic.startswith(_INTERNAL):
            problem = f"{topic} is an internal Kafka topic"
            raise InvalidValue(problem=problem, remedy=f"name one that does not begin with {_INTERNAL!r}", path="topic")
        if not self._matches(topic, self.topics):
            problem = f"{topic} is not a topic that jobs may write to"
            raise InvalidValue(problem=problem, remedy="use a topic that TIDEWHEEL_KAFKA_TOPICS allows", path="topic")

    def check_function(self, function: str, qualifier: str | None, region: str | None) -> None:
        """Check the function of a Lambda target, as it is written, with its qualifier."""
        name = function if qualifier is None else f"{function}:{qualifier}"
        if region is not None and not function.startswith("arn:"):
            name = f"{region}:{name}"
        if not self._matches(name, self.functions):
            problem = f"{name} is not a function that jobs may invoke"
            raise InvalidValue(
                problem=problem, remedy="use a function that TIDEWHEEL_LAMBDA_FUNCTIONS allows", path="function"
            )

    def check_program(self, argv: Sequence[str], cwd: str | None, env: Mapping[str, str]) -> None:
        """Check a shell target: its whole command line, its folder as written, and its variables."""
        if not self.programs and not self.enforces:
            return
        matching = [pattern for pattern in self.programs if pattern.allows(argv)]
        if not matching or path_problem(argv[0]):
            problem = f"{shown(shlex.join(argv))} is not a command line that jobs may run"
            raise InvalidValue(
                problem=problem, remedy="use a command line that TIDEWHEEL_SHELL_ALLOW allows", path="argv"
            )
        if cwd is not None and (path_problem(cwd) or not any(is_within(cwd, folder) for folder in self.folders)):
            problem = f"{shown(cwd)} is not a folder in which jobs may run"
            raise InvalidValue(
                problem=problem, remedy="use a folder that TIDEWHEEL_SHELL_CWD allows, or leave it out", path="cwd"
            )
        if all(pattern.program != ANY for pattern in matching):
            for name in sorted(set(env).difference(self.variables)):
                # A variable can make an allowed program run another one. A list of dangerous ones is never complete.
                raise InvalidValue(
                    problem=f"a job may not set {name}",
                    remedy="use a variable that TIDEWHEEL_SHELL_JOB_ENV allows",
                    path=f"env.{name}",
                )

    def _matches(self, name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns) or not (patterns or self.enforces)


def _host_matches(host: Host, pattern: str) -> bool:
    return pattern == host.name or (
        pattern.startswith("*.") and host.address is None and host.name.endswith(pattern[1:])
    )

"""The blocks of a page that are executed, and how: an HTML comment on the line before the fence says it.

| comment | fence | what happens |
| --- | --- | --- |
| `<!-- run -->` | `sh` | the commands run in the page's shell, in which `export`, `cd` and `&` last to its end |
| `<!-- run -->` | `python` | the program runs as a reader's file would, by `python` in that shell |
| `<!-- file: NAME -->` | any | the text is written to a file of that name |
| `<!-- output -->` | any | compared with what the block before it printed on standard output |

Values that differ from one run to the next are shown as they were in one: before the comparison every UUID, instant
(with its day) and port is replaced on both sides. `…` stands for anything within a line.
"""

import os
import re
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"^<!-- (?P<what>run|output|sql|(?:file|record): (?P<name>[^\n]+?)) -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_VARYING = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d(:\d\d)?)"), "<instant>"),
    (re.compile(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) <instant>"), "<day> <instant>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:<port>"),
)
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Block:
    """One marked block.

    Args:
        line: Where its fence stands in the page.
        what: `run`, `output` or `file`.
        name: Of the file.
        language: As the fence says.
        text: What is in it.
    """

    line: int
    what: str
    name: str
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """The marked blocks of a page, in its order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield Block(line, found["what"].partition(":")[0], found["name"] or "", found["language"], found["text"])


def fits(shown: str, printed: str) -> bool:
    """Whether a block of output shows what was printed, but for what differs from run to run.

    >>> fits("at 2026-11-20T10:00:30Z: … done", "at 2031-01-01T00:00:00.5+01:00: all done"), fits("a", "b")
    (True, False)
    """
    lines, found = _settled(shown), _settled(printed)
    if len(lines) != len(found):
        return False
    patterns = (".*".join(re.escape(part) for part in line.split("…")) for line in lines)
    return all(re.fullmatch(pattern, line) for pattern, line in zip(patterns, found, strict=True))


class Shell:
    """One bash for a page, in a folder of its own; everything started in it ends with it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        with (folder / "stderr.log").open("wb") as errors:
            self._process = subprocess.Popen(
                ["bash", "--norc"],  # noqa: S607 - the reader's
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def run(self, block: Block) -> str:
        """Run a block; returns what it printed.

        Raises:
            AssertionError: A command failed, or took too long.
        """
        commands = block.text
        if block.language == "python":
            program = self._folder / f"line_{block.line}.py"
            program.write_text(block.text, encoding="utf-8")
            commands = f"python {program.name}\n"
        printed, status = self._ask(commands)
        assert status == 0, f"exit status {status} of the block at line {block.line}:\n{printed}{self.errors()}"
        return printed

    def write(self, block: Block) -> None:
        """Write a block to its file."""
        (self._folder / block.name).write_text(block.text, encoding="utf-8")

    def errors(self) -> str:
        """What its commands said on standard error."""
        return (self._folder / "stderr.log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End what was started here and wait for it."""
        if self._process.poll() is None:
            self._ask("kill $(jobs -p) 2>/dev/null; wait\n")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE_SECONDS)
        self._process.stdout.close()

    def _ask(self, commands: str) -> tuple[str, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        mark = f"end-{secrets.token_hex(8)}"
        # Programs must not read what the shell is to read next; a command that fails is noted, and the shell lives on.
        self._process.stdin.write(
            f"failed=0; trap 'failed=$?' ERR\n{{ {commands}\n}} </dev/null\ntrap - ERR; echo; echo {mark} $failed\n"
        )
        self._process.stdin.flush()
        late = threading.Timer(_PATIENCE_SECONDS, lambda: os.killpg(self._process.pid, signal.SIGKILL))
        late.start()
        lines: list[str] = []
        try:
            for line in self._process.stdout:
                if line.startswith(mark):
                    return "".join(lines).removesuffix("\n"), int(line.split()[1])
                lines.append(line)
        finally:
            late.cancel()
        return "".join(lines), -1


def _settled(text: str) -> list[str]:
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return [line.rstrip() for line in text.rstrip().splitlines()]

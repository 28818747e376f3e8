"""Blocks of a page that tests execute or compare.

An HTML comment on the line before the fence marks a block:

| comment | fence | what happens |
| --- | --- | --- |
| `<!-- run -->` | `sh` | the commands run in the page's shell, in which `export`, `cd` and `&` last to its end |
| `<!-- run -->` | `python` | the program runs as a file, by `python` in that shell |
| `<!-- run: before -->` | both | the same; it makes what the task on the page begins with |
| `<!-- terminal: FIRST … LAST -->` | `sh` | the command runs in a terminal of its own, until Ctrl-C |
| `<!-- file: NAME -->` | any | the text is written to a file of that name |
| `<!-- output -->` | any | compared with the standard output of the block before it |
| `<!-- record: NAME -->` | any | compared with a real record (`test_records.py`) |

A comment of several lines that begins with `<!-- before` has commands that a reader does not see. They make the past
that a block needs. The UUIDs of an output stand for those that were printed, also in later blocks.

The page goes on when a terminal shows the text LAST; its output begins with FIRST. Ctrl-C is pressed before the next
such block and at the end of the page.

Values that differ between runs are shown as in one run: before the comparison every UUID, instant (with its day) and
port is replaced on both sides. `…` matches any text within a line, or any lines if a line has nothing else.
"""

import base64
import os
import re
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fixtures.terminal import CTRL_C, Terminal
from tidewheel.clock import monotonic_seconds

_BLOCK = re.compile(
    r"^<!-- (?P<what>run|output|(?:file|record|run|terminal): (?P<name>[^\n]+?)) -->\n"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```$"
    r"|^<!-- before\n(?P<hidden>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VARYING = (
    (_UUID, "<uuid>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d(:\d\d)?)"), "<instant>"),
    (re.compile(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) <instant>"), "<day> <instant>"),
    (re.compile(r"(?<=signature: )[A-Za-z0-9+/]{28}"), "<signature>"),
    (re.compile(r"127\.0\.0\.1(:| port=)\d+"), r"127.0.0.1\1<port>"),
)
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Block:
    """One marked block; `name` is a file, a record, the texts of a terminal, or `before` of a run."""

    line: int
    what: str
    name: str
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the marked blocks of a page, in its order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        if found["hidden"] is not None:
            yield Block(line, "before", "", "sh", found["hidden"])
        else:
            yield Block(line, found["what"].partition(":")[0], found["name"] or "", found["language"], found["text"])


def fits(shown: str, printed: str) -> bool:
    """Return True if a block shows the printed text, apart from values that differ between runs.

    >>> fits("at 2026-11-20T10:00:30Z: … done", "at 2031-01-01T00:00:00.5+01:00: all done"), fits("a", "b")
    (True, False)
    >>> fits("a\\n…\\nd", "a\\nb\\nc\\nd"), fits("a\\nd", "a\\nb\\nd")
    (True, False)
    """
    patterns = [
        r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
        for line in _normalised(shown)
    ]
    return re.fullmatch("".join(patterns), "".join(f"{line}\n" for line in _normalised(printed))) is not None


class Shell:
    """One bash for a page, in its own folder; it ends every process that it started."""

    def __init__(self, folder: Path, environment: dict[str, str], seconds: float = _TIMEOUT_SECONDS) -> None:
        self._folder, self._seconds = folder, seconds
        self._uuids: dict[str, str] = {}
        self._terminal: Terminal | None = None
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
        """Run a block and return its output.

        Raises:
            AssertionError: A command failed, or took too long.
        """
        commands = _UUID.sub(lambda shown: self._uuids.get(shown[0], shown[0]), block.text)
        if block.language == "python":
            program = self._folder / f"line_{block.line}.py"
            program.write_text(commands, encoding="utf-8")
            commands = f"python {program.name}\n"
        printed, status = self._execute(commands)
        assert status == 0, f"exit status {status} of the block at line {block.line}:\n{printed}{self.errors()}"
        return printed

    def learn(self, shown: str, printed: str) -> None:
        """Let the UUIDs of an output stand for those that were printed."""
        self._uuids.update(zip(_UUID.findall(shown), _UUID.findall(printed), strict=False))

    def open_terminal(self, block: Block) -> str:
        """Run a block in a terminal, in place of the one before; return what it shows from the first text on."""
        self.close_terminal()
        first, _, last = block.name.partition(" … ")
        # With the variables that the page's shell has exported by now.
        exported, _ = self._execute("env -0 | base64 -w 0")
        pairs = (pair.partition("=") for pair in base64.b64decode(exported).decode().split("\0") if pair)
        command = ["bash", "--norc", "-c", block.text]
        self._terminal = Terminal(command, folder=self._folder, environment={name: value for name, _, value in pairs})
        shown, _, _ = self._terminal.until(last, after=first).partition(last)
        shown = first + shown + last
        return shown + self._terminal.until("\n", after=shown).partition("\n")[0]  # the rest of its line comes later

    def close_terminal(self) -> None:
        """Press Ctrl-C in the terminal, after which the command ends without an error."""
        if self._terminal is not None:
            terminal, self._terminal = self._terminal, None
            terminal.press(CTRL_C)
            try:
                assert terminal.wait() == 0, terminal.screen
            finally:
                terminal.close()

    def write(self, block: Block) -> None:
        """Write a block to its file."""
        (self._folder / block.name).write_text(block.text, encoding="utf-8")

    def errors(self) -> str:
        """Return the end of its standard error."""
        return (self._folder / "stderr.log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End its processes and wait for them."""
        self.close_terminal()
        if self._process.poll() is None:
            self._execute("kill $(jobs -p) 2>/dev/null; wait\n")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_TIMEOUT_SECONDS)
        self._process.stdout.close()

    def _execute(self, commands: str) -> tuple[str, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        mark = f"end-{secrets.token_hex(8)}"
        # Programs must not read the shell's next input. A failed command is recorded, and the shell goes on.
        self._process.stdin.write(
            f"failed=0; trap 'failed=$?' ERR\n{{ {commands}\n}} </dev/null\ntrap - ERR; echo; echo {mark} $failed\n"
        )
        self._process.stdin.flush()
        late = threading.Timer(self._seconds, lambda: os.killpg(self._process.pid, signal.SIGKILL))
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


def follow(page: Path, shell: Shell) -> Iterator[tuple[Block, str, float]]:
    """Run the blocks of a page in their order; yield each with the last output and its seconds."""
    printed = ""
    try:
        for block in blocks(page):
            begun = monotonic_seconds()
            if block.what == "file":
                shell.write(block)
            elif block.what == "before":
                shell.run(block)
            elif block.what == "run":
                printed = shell.run(block)
            elif block.what == "terminal":
                printed = shell.open_terminal(block)
            elif block.what == "output":
                shell.learn(block.text, printed)
            yield block, printed, monotonic_seconds() - begun
    finally:
        shell.close()


def _normalised(text: str) -> list[str]:
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return [line.rstrip() for line in text.rstrip().splitlines()]

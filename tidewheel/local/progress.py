"""Progress reports of the embedded stack."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Step:
    """One thing being done, in words, with the bytes to do; 0 where they cannot be counted."""

    what: str
    done_bytes: int = 0
    total_bytes: int = 0
    part: str = ""

    @property
    def words(self) -> str:
        """The step with its part."""
        return f"{self.what}: {self.part}" if self.part else self.what


Progress: TypeAlias = Callable[[Step], None]


def in_silence(step: Step) -> None:
    """Show nothing."""
    del step

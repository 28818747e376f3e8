"""Describe how an interpreter was built: its version, PGO and LTO.

CPython without profile-guided optimization (PGO) takes about a fifth more CPU for the same work. `.ci/python` runs this
file by each interpreter that `make setup` could take. So it imports the standard library alone.
"""

import platform
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

WITHOUT_PGO = "this Python was built without PGO: all Python code costs about a fifth more CPU than with it"

_OLDEST = (3, 11)
_NEEDED = ("venv", "ensurepip")
_FLAGS = ("PY_CFLAGS_NODIST", "PY_CORE_CFLAGS", "PY_LDFLAGS_NODIST", "PY_CORE_LDFLAGS")


@dataclass(frozen=True, slots=True)
class Build:
    """One interpreter's profile-guided and link-time optimization, as keys of the JSON document."""

    version: str
    pgo: bool
    lto: bool

    def __str__(self) -> str:
        pgo, lto = ("with" if built else "without" for built in (self.pgo, self.lto))
        return f"Python {self.version} ({pgo} PGO, {lto} LTO)"


def read_build(variables: Mapping[str, object] | None = None) -> Build:
    """The build of the running interpreter, or that of other `sysconfig` variables.

    `make profile-opt` compiles with `PGO_PROF_USE_FLAG`, and sysconfig keeps the flags that were used. The packages of
    Debian and Ubuntu delete both, and no configuration of CPython leaves that variable empty. They have PGO where they
    have LTO, and LTO needs gcc's own `ar`.

    Source: debian/rules of python3.11, `with_pgo`, `with_lto` and `sysconfig_substflags`.
    """
    found = sysconfig.get_config_vars() if variables is None else variables
    flags = " ".join(str(found.get(name) or "") for name in _FLAGS)
    arguments = str(found.get("CONFIG_ARGS") or "")
    deleted = bool(found.get("PGO_PROF_GEN_FLAG")) and found.get("PGO_PROF_USE_FLAG") == ""
    by_debian = deleted and str(found.get("AR")).endswith("gcc-ar")
    return Build(
        platform.python_version(),
        pgo=by_debian or "-fprofile-use" in flags or "-instr-use" in flags or "'--enable-optimizations'" in arguments,
        lto=by_debian or "-flto" in flags or "'--with-lto" in arguments,
    )


def main() -> int:
    """Print the running interpreter's build; return 0 if `make setup` prefers it."""
    build = read_build()
    print(build)
    return int(not build.pgo or sys.version_info < _OLDEST or None in map(find_spec, _NEEDED))


if __name__ == "__main__":
    sys.exit(main())

"""Network namespaces with links that are cut in silence, and small file systems.

The servers listen on 127.0.0.1 of the machine. In a namespace that address is not local: a route leads to the machine
over a veth pair, and the machine accepts the packets (`route_localnet`). No setting of the servers changes except
PostgreSQL's pg_hba.conf, which has to admit the namespace's address.

One port is cut by a rule that routes its packets to a link whose far end drops them.
"""

import subprocess
from contextlib import suppress
from pathlib import Path
from shutil import which

_SINK = "100"  # number of the routing table that leads nowhere
# Fixed addresses of the link's ends: else ARP fails after a cut, and connections end with "no route to host".
_HERE, _THERE = "02:00:00:00:01:01", "02:00:00:00:01:02"


class Namespace:
    """One namespace."""

    def __init__(self, number: int) -> None:
        self.name = f"tidewheel-{number}"
        self._link, self._far = f"twf{number}", f"twg{number}"
        self._here, self._there = f"10.213.{number}.1", f"10.213.{number}.2"
        self.remove()
        _run("ip", "netns", "add", self.name)
        pair = (
            f"link add {self._link} address {_HERE} type veth peer name {self._far} address {_THERE} netns {self.name}"
        )
        _run("ip", *pair.split())
        _run("ip", "addr", "add", f"{self._here}/30", "dev", self._link)
        self.mend()
        Path(f"/proc/sys/net/ipv4/conf/{self._link}/route_localnet").write_text("1")
        for command in (
            f"link set {self._far} up",
            f"addr add {self._there}/30 dev {self._far}",
            f"neigh add {self._here} lladdr {_HERE} dev {self._far} nud permanent",
            "link set lo up",
            "route del local 127.0.0.0/8 dev lo table local",
            "route del local 127.0.0.1 dev lo table local",
            "addr del 127.0.0.1/8 dev lo",
            "link add sink0 type veth peer name sink1",
            "link set sink0 up",
            "link set sink1 up",
            "addr add 10.213.255.1/30 dev sink0",
            "neigh add 10.213.255.2 lladdr 02:00:00:00:00:01 dev sink0 nud permanent",
            f"route add default via 10.213.255.2 dev sink0 src {self._there} table {_SINK}",
        ):
            _run("ip", "-n", self.name, *command.split())
        write = f"echo 1 > /proc/sys/net/ipv4/conf/{self._far}/route_localnet"
        _run("ip", "netns", "exec", self.name, "sh", "-c", write)
        _run(
            "ip", "-n", self.name, *f"route add 127.0.0.1/32 via {self._here} dev {self._far} src {self._there}".split()
        )

    @property
    def command(self) -> tuple[str, ...]:
        """The words before a command that is to run in it."""
        return "ip", "netns", "exec", self.name

    def cut(self) -> None:
        """Cut everything, both ways."""
        _run("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        """Undo `cut`."""
        _run("ip", "link", "set", self._link, "up")
        _run("ip", *f"neigh replace {self._there} lladdr {_THERE} dev {self._link} nud permanent".split())

    def cut_port(self, port: int) -> None:
        """Drop what is sent to one port; what comes from it arrives."""
        _run("ip", "-n", self.name, *f"rule add ipproto tcp dport {port} lookup {_SINK} pref 10".split())

    def mend_port(self, port: int) -> None:
        """Undo `cut_port`."""
        _run("ip", "-n", self.name, *f"rule del ipproto tcp dport {port} lookup {_SINK} pref 10".split())

    def remove(self) -> None:
        """Remove it, with what is left of an earlier one."""
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)  # noqa: S607
        subprocess.run(["ip", "link", "del", self._link], capture_output=True, check=False)  # noqa: S607


def why_no_namespaces() -> str:
    """Return why namespaces cannot be made here; empty if they can."""
    if which("ip") is None:
        return "iproute2 is not installed"
    try:
        probe = Namespace(250)
    except (subprocess.CalledProcessError, OSError) as error:
        return f"network namespaces are not permitted here ({_cause(error)})"
    probe.remove()
    return ""


def why_no_mounts(folder: Path) -> str:
    """Return why no file system can be mounted here; empty if one can."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        mount(folder, 1)
    except (subprocess.CalledProcessError, OSError) as error:
        return f"mounts are not permitted here ({_cause(error)})"
    unmount(folder)
    return ""


def mount(folder: Path, megabytes: int) -> None:
    """Mount a file system of this size in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "tidewheel-faults", str(folder))


def unmount(folder: Path) -> None:
    """Undo `mount`, also while a process is still there."""
    _run("umount", "-l", str(folder))


def fill(folder: Path) -> Path:
    """Fill a file system to its last byte; return the file that does so."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while file.write(b"\0" * size):
                    pass
    return ballast


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True)


def _cause(error: Exception) -> str:
    return str(getattr(error, "stderr", "") or error).strip()

"""Memory and start-up time of each pod, and how its containers ended."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from tools.kubernetes.node import Node

_POD = re.compile(r"/pod([0-9a-f-]{36})/", re.ASCII)
_SERVICES = "--selector=app.kubernetes.io/name=tidewheel,tidewheel/service!=migrate"
# A line whenever a pod changes. The kubelet reports how its containers ended before the pod is deleted.
_ENDS = (
    "jsonpath={.metadata.name} {.status.containerStatuses[0].state.terminated.exitCode}"
    " {.status.containerStatuses[0].lastState.terminated.exitCode}{'\\n'}"
)
_KILLED = "137"  # 128 + SIGKILL
_ENDED = re.compile(r"^(\S+) +(\d+)", re.ASCII | re.MULTILINE)


def watch_ends(node: Node) -> Path:
    """Record from now on how containers of services end, in the file that is returned."""
    return node.start_program("kubectl", "get", "pods", "--watch", _SERVICES, f"--output={_ENDS}")


def faults_of(ends: Path) -> Iterator[str]:
    """Return the containers that the kubelet has killed, after their grace period or for their memory."""
    for pod, code in sorted(set(_ENDED.findall(ends.read_text()))):
        if code == _KILLED:
            yield f"a container of {pod} was killed: exit code {code}"


def print_pods(node: Node) -> None:
    """Print the memory of each pod, and the seconds from its creation until it was ready."""
    memory = _memory()
    print(f"\n{'pod':<50}{'memory':>12}{'ready after':>14}")
    for pod in json.loads(node.kubectl("get", "pods", "--output=json"))["items"]:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if (seconds := _ready_seconds(pod)) is not None:
            print(f"{name:<50}{memory[uid] / 2**20:>8.0f} MiB{seconds:>12.0f} s")
    print()


def _ready_seconds(pod: dict[str, Any]) -> float | None:
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "Ready" and condition["status"] == "True":
            since = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
            return (datetime.fromisoformat(condition["lastTransitionTime"]) - since).total_seconds()
    return None


def _memory() -> Counter[str]:
    """Return the bytes of each pod's processes by its uid; of shared pages each process has its part."""
    found: Counter[str] = Counter()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if pod := _POD.search(Path(f"/proc/{process.pid}/cgroup").read_text()):
                found[pod[1]] += process.memory_full_info().pss
    return found

"""One node of Kubernetes in the namespaces of this process: its files, its network, its programs."""

import os
import secrets
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from string import Template

from tidewheel.errors import StackError
from tidewheel.local.daemon import log_tail
from tools.containers.engine import run
from tools.containers.progress import step, wait_for

RECIPES = Path(__file__).with_name("recipes")

_START_SECONDS = 300.0  # 20 s on an idle machine with two cores
_COVERED = ("etc", "run", "var")  # where the programs write paths of their own
_NETWORK = """
ip link set lo up
ip link add cluster0 type bridge
ip address add 10.244.0.1/24 dev cluster0
ip link set cluster0 up
ip route add 10.96.0.0/16 dev cluster0
sysctl --quiet --write net.ipv4.ip_forward=1
"""


class Node:
    """The node, and the commands of its users. All of it ends with this process."""

    def __init__(self, folder: Path, programs: Mapping[str, Path]) -> None:
        self._folder, self._programs = folder, programs
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._variables = {"KUBECONFIG": str(folder / "kubeconfig.yaml"), "HOME": str(folder)}

    def start(self) -> None:
        """Start all programs, and wait until the node is ready and has the images."""
        with step("start etcd, Kubernetes, containerd and CoreDNS until the node is ready"):
            self._cover()
            for command in _NETWORK.strip().splitlines():
                run(shlex.split(command))
            self._write_files()
            for command in self._recipe("commands.sh").splitlines():
                if words := shlex.split(command, comments=True):
                    self.start_program(*words)
            wait_for(self._is_ready, "the node is ready", _START_SECONDS)
        with step("import the images"):
            self._run("ctr", "--address", self._folder / "containerd.sock", "--namespace=k8s.io", "images", "import",
                      self._folder / "images.tar")  # fmt: skip

    def start_program(self, name: str, *arguments: str) -> Path:
        """Start a program that ends with the node; return the file of what it prints."""
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            self._started[name] = subprocess.Popen(
                [self._programs.get(name, name), *arguments],
                env={**os.environ, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return log

    def kubectl(self, *arguments: str | Path) -> str:
        """Run a command of kubectl; return what it prints."""
        return self._run("kubectl", *arguments)

    def helm(self, *arguments: str | Path) -> str:
        """Run a command of Helm; return what it prints."""
        return self._run("helm", *arguments)

    def tidewheel(self, service: str, *arguments: str) -> str:
        """Run a command of `tidewheel` in a pod of a service."""
        return self.kubectl("exec", f"deployment/tidewheel-{service}", "--", "tidewheel", *arguments)

    def apply(self, recipe: str) -> None:
        """Create the objects of a recipe."""
        self.kubectl("apply", "--filename", RECIPES / recipe)

    def logs(self) -> str:
        """Return objects, events, and the last lines of all pods and programs."""
        parts = {"objects": self._try("get", "pods,jobs,services,events", "--output=wide")}
        for pod in self._try("get", "pods", "--output=name").split():
            parts[pod] = self._try("logs", pod, "--all-containers", "--tail=200")
        for name in self._started:
            lines = (self._folder / f"{name}.log").read_text(errors="replace").splitlines()
            parts[name] = "\n".join(lines[-100:])
        return "\n".join(f"== {name}\n{text}" for name, text in parts.items())

    def _try(self, *arguments: str) -> str:
        try:
            return self.kubectl(*arguments)
        except StackError as error:
            return str(error)

    def _cover(self) -> None:
        """Let all programs write to a copy of these folders, which other processes do not see."""
        for name in _COVERED:
            upper, work = self._folder / name, self._folder / f"{name}-work"
            upper.mkdir()
            work.mkdir()
            options = f"lowerdir=/{name},upperdir={upper},workdir={work}"
            run(["mount", "--types=overlay", f"--options={options}", "overlay", f"/{name}"])
        names = Path("/etc/resolv.conf")
        names.unlink(missing_ok=True)
        names.write_text("nameserver 10.244.0.1\nsearch default.svc.cluster.local\n")

    def _write_files(self) -> None:
        (self._folder / "cni").mkdir()
        token = secrets.token_hex(24)
        (self._folder / "tokens.csv").write_text(f'{token},admin,1,"system:masters"\n')
        run(["openssl", "genrsa", "-out", self._folder / "sa.key", "2048"])
        for name in ("kubeconfig.yaml", "kubelet.yaml", "containerd.toml", "Corefile"):
            (self._folder / name).write_text(self._recipe(name, token=token))
        (self._folder / "cni" / "bridge.conflist").write_text(self._recipe("bridge.conflist"))

    def _recipe(self, name: str, **more: str) -> str:
        return Template((RECIPES / name).read_text()).substitute(folder=self._folder, **more)

    def _is_ready(self) -> bool:
        for name, process in self._started.items():
            if process.poll() is not None:
                log = (self._folder / f"{name}.log").read_text(errors="replace")
                message = f"{name} ended with {process.returncode}: {log_tail(log)}"
                raise StackError(message)
        ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
        return self._try("get", "nodes", f"--output={ready}").strip() == "True"

    def _run(self, program: str, *arguments: str | Path) -> str:
        return run([self._programs.get(program, program), *arguments], variables=self._variables)

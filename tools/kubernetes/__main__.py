"""Compile programs, build images, and run the trial in namespaces: `python -m tools.kubernetes`.

Exit codes: 0 if nothing was lost or completed twice, 1 if a trigger was lost or the trial cannot run,
130 if interrupted.
"""

import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import mkdtemp

import psutil

from tidewheel.errors import StackError
from tools.containers.__main__ import guarded
from tools.containers.engine import PACKAGES, Engine, check_machine
from tools.containers.images import PROMETHEUS, ROOT, build_images, build_prometheus, debian, revision
from tools.containers.progress import step, wait_for
from tools.kubernetes.programs import compile_programs, scaled_object_schema

_MORE_PACKAGES = {
    "containerd": "containerd",
    "etcd": "etcd-server",
    "ip": "iproute2",
    "iptables": "iptables",
    "openssl": "openssl",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
_NETWORK = Path("/usr/lib/cni/bridge")
_IMAGES = ("trial/work:one", "trial/work:two", "trial/postgres", "trial/kafka", "trial/pause", PROMETHEUS)
# All processes, mounts and interfaces of the trial end with its first process, also by SIGKILL.
_APART = (
    "setpriv",
    "--pdeathsig=KILL",
    "unshare",
    "--mount",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
_CGROUPS_SECONDS = 30.0
# What a kubelet sets for the whole machine.
_KERNEL = [
    *(Path("/proc/sys/vm", name) for name in ("overcommit_memory", "panic_on_oom")),
    *(Path("/proc/sys/kernel", name) for name in ("panic", "panic_on_oops", "keys/root_maxkeys", "keys/root_maxbytes")),
]


def run_it() -> int:
    """Run the trial, and return the exit code."""
    check_machine("make kubernetes", PACKAGES | _MORE_PACKAGES, ())
    _check_more()
    revision()  # of the images' labels
    compile_programs()
    scaled_object_schema()
    with ExitStack() as undo:
        folder = Path(mkdtemp(prefix="tidewheel-kubernetes-"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        _save_images(folder)
        for setting in _KERNEL:
            undo.callback(setting.write_text, setting.read_text())
        undo.callback(_remove_cgroups)
        with subprocess.Popen(
            [*_APART, sys.executable, "-m", "tools.kubernetes.trial", folder],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to this program alone, which then ends the others
        ) as trial:
            undo.callback(trial.kill)
            return trial.wait()


def _check_more() -> None:
    if not _NETWORK.exists():
        message = f"{_NETWORK} is missing: run `apt-get install containernetworking-plugins`"
        raise StackError(message)
    if any(process.info["name"] == "kubelet" for process in psutil.process_iter(["name"])):
        message = "a kubelet runs, whose cgroups this one would use: stop it, or use another machine"
        raise StackError(message)


def _save_images(folder: Path) -> None:
    """Write all images to an archive; the engine ends before the node starts, and changes no network."""
    place = folder / "engine"
    place.mkdir()
    with Engine(place, "--iptables=false", "--ip-forward=false") as engine:
        build_images(engine)
        build_prometheus(engine)
        engine.docker("import", "--change", 'CMD ["/usr/bin/sleep", "infinity"]', debian(), "trial/pause")
        for tag in ("one", "two"):
            engine.docker("tag", "trial/work", f"trial/work:{tag}")
        with step("write the images to an archive"):
            engine.docker("save", "--output", folder / "images.tar", *_IMAGES)
    shutil.rmtree(place)


def _remove_cgroups() -> None:
    """Remove the cgroups of the pods, once the kernel has ended their processes."""

    def are_gone() -> bool:
        tops = [top for depth in ("", "*/") for top in Path("/sys/fs/cgroup").glob(f"{depth}kubepods")]
        for each in sorted((each for top in tops for each in (top, *top.rglob("*/"))), reverse=True):
            with suppress(OSError):
                each.rmdir()
        return not any(top.exists() for top in tops)

    wait_for(are_gone, "the cgroups of the pods are removed", _CGROUPS_SECONDS)


if __name__ == "__main__":
    sys.exit(guarded(run_it))

"""The trial: install the chart, replace its pods under load in each way, and judge what is left."""

import json
import secrets
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import gettempdir

import httpx

from tidewheel.clock import SystemClock
from tidewheel.distribution import release_version
from tidewheel.errors import StackError
from tools.containers.__main__ import guarded, report
from tools.containers.images import ROOT
from tools.containers.judge import Addresses, attempt_faults, run_under_load
from tools.containers.load import BY_REST, open_console
from tools.containers.progress import step, wait_for
from tools.kubernetes.node import RECIPES, Node
from tools.kubernetes.pods import faults_of, print_pods, watch_ends
from tools.kubernetes.programs import compile_programs, scaled_object_schema
from tools.kubernetes.scaling import wanted_pods

_API, _BROKER = "http://tidewheel-api:8080", "kafka:9092"  # Services, by their names
_KINDS = ("intake", "scheduler", "relay", "executor-default", "api")
_ROLES = ("owner", "scheduler", "relay", "intake", "executor", "api", "application")
_LOGS = Path(gettempdir()) / "tidewheel-kubernetes.log"
_WAIT = ("--wait", "--timeout=45m")
_MORE_RUNS = 1000  # ten times the target of a pod, and more than one executor runs in half a minute
_SCALE_SECONDS = 300.0


class Trial:
    """The chart as the release `tidewheel`, and the load on it."""

    def __init__(self, node: Node, folder: Path) -> None:
        self._node, self._folder = node, folder
        self._password = secrets.token_hex(24)

    def run(self) -> list[str]:
        """Run all of it, and return the faults."""
        began = SystemClock().now()
        ends = self._install()
        key = self._node.tidewheel("api", "admin", "api-key", "create", "trial", "--scope", "admin").strip()
        at = Addresses(_API, _BROKER, f"postgresql://tidewheel:{self._password}@postgres/tidewheel")
        faults = run_under_load(
            at,
            key,
            {"sign in to the console, read a page": partial(open_console, at.api, key), **self._changes(key)},
            lambda: self._node.tidewheel("api", "admin", "audit", "--from", began.isoformat(), "--completions"),
        )
        faults += attempt_faults(at.database, {"released"})
        print_pods(self._node)
        return [*faults, *faults_of(ends)]

    def _install(self) -> Path:
        passwords = self._folder / "passwords"
        passwords.mkdir()
        for role in _ROLES:
            (passwords / role).write_text(self._password if role == "owner" else secrets.token_hex(24))
        self._node.kubectl("create", "secret", "generic", "tidewheel-database", f"--from-file={passwords}")
        token = f'--from-literal=api.toml=api_token = "{secrets.token_hex(24)}"'
        self._node.kubectl("create", "secret", "generic", "tidewheel-api", token)
        self._node.kubectl("create", f"--filename={scaled_object_schema()}")
        with step("start PostgreSQL, a broker and Prometheus beside it"):
            self._node.apply("beside.yaml")
            self._node.kubectl("wait", "pod", "--all", "--for=condition=Ready", "--timeout=5m")
        with step("validate the chart's objects, KEDA's by its schema"):
            rendered = self._folder / "rendered.yaml"
            rendered.write_text(self._helm("template", "--validate"))
            self._node.kubectl("apply", "--dry-run=server", "--validate=strict", f"--filename={rendered}")
        with step("helm install --wait"):
            ends = watch_ends(self._node)
            self._helm("install")
        print_pods(self._node)
        return ends

    def _helm(self, command: str, *more: str) -> str:
        values = RECIPES / "values.yaml"
        return self._node.helm(command, "tidewheel", ROOT / "chart", "--values", values, *_WAIT, *more)

    def _changes(self, key: str) -> dict[str, Callable[[], object]]:
        return {
            "scale to 1 executor as KEDA would": partial(self._scale, 1),
            f"start {_MORE_RUNS:,} runs, scale to 3 as KEDA would": partial(self._scale_up, key),
            **{f"kubectl delete pod of {kind}": partial(self._delete, kind) for kind in (*_KINDS, "executor-patient")},
            "evict two pods of each kind, one refused": self._evict,
            "scale back to 1 as KEDA would": partial(self._scale, 1),
            "helm upgrade --wait to another image": lambda: self._helm("upgrade", "--set=image.tag=two"),
            "helm rollback --wait": lambda: self._node.helm("rollback", "tidewheel", *_WAIT),
            "helm upgrade --wait with migrate.post": self._migrate_post,
        }

    def _migrate_post(self) -> None:
        self._helm("upgrade", "--set=image.tag=two", f"--set=migrate.post={release_version()}")
        if "tidewheel-migrate-post" not in self._node.helm("get", "hooks", "tidewheel"):
            message = f"migrate.post={release_version()} starts no job"
            raise StackError(message)

    def _delete(self, kind: str) -> None:
        self._node.kubectl("delete", "pod", self._pods(kind)[0])
        self._wait_ready(kind)

    def _evict(self) -> None:
        """Evict a pod of each kind; the second one must be refused while the first is replaced."""
        for kind in _KINDS:
            first, second, *_ = self._pods(kind)
            self._request_eviction(first)
            try:
                self._request_eviction(second)
            except StackError as error:
                if "disruption budget" not in str(error):
                    raise
            else:
                message = f"the disruption budget of {kind} let two pods be evicted at once"
                raise StackError(message)
            self._wait_ready(kind)

    def _request_eviction(self, pod: str) -> None:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
        file = self._folder / "eviction.json"
        file.write_text(json.dumps(eviction))
        path = f"/api/v1/namespaces/default/pods/{pod}/eviction"
        self._node.kubectl("create", f"--raw={path}", f"--filename={file}")

    def _scale_up(self, key: str) -> None:
        """Start many runs by one request, so that one executor has a backlog."""
        runs = [{"ref": f"{number}", "key": BY_REST} for number in range(_MORE_RUNS)]
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.post(f"{_API}/api/v1/batches", json={"runs": runs}, headers=headers, timeout=60, trust_env=False)
        answer.raise_for_status()
        self._scale(3)

    def _scale(self, pods: int) -> None:
        """Set the number of executors that KEDA would set, until it is this one."""
        scaled = json.loads(self._node.kubectl("get", "scaledobjects/tidewheel-executor-default", "--output=json"))
        pool = scaled["spec"]["scaleTargetRef"]["name"]

        def is_reached() -> bool:
            if wanted := wanted_pods(scaled):
                self._node.kubectl("scale", f"deployment/{pool}", f"--replicas={wanted}")
            return wanted == pods

        wait_for(is_reached, f"KEDA would set {pods} executors", _SCALE_SECONDS)
        self._wait_ready("executor-default")

    def _wait_ready(self, kind: str) -> None:
        self._node.kubectl("rollout", "status", f"deployment/tidewheel-{kind}", "--timeout=5m")

    def _pods(self, kind: str) -> list[str]:
        """Return the pods of a kind that are not about to end."""
        selector = f"--selector=app.kubernetes.io/component={kind}"
        items = json.loads(self._node.kubectl("get", "pods", selector, "--output=json"))["items"]
        return [each["metadata"]["name"] for each in items if "deletionTimestamp" not in each["metadata"]]


def run_it() -> int:
    """Run the trial in this process's namespaces; return the exit code."""
    folder = Path(sys.argv[1])
    node = Node(folder, compile_programs())
    try:
        node.start()
        faults = Trial(node, folder).run()
    except BaseException:
        _keep_logs(node)
        raise
    if faults:
        _keep_logs(node)
    return report(faults, "passed: no trigger was lost, no attempt was counted")


def _keep_logs(node: Node) -> None:
    _LOGS.write_text(node.logs())
    print(f"the logs of the pods and programs: {_LOGS}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(guarded(run_it))

"""Helm accepts the chart, Kubernetes' schemas what it renders, and both say what the code knows."""

import json
import re
import subprocess
import sys
from functools import cache
from typing import Any, cast

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from tests.control.cli.command import find_command
from tests.strict_types import ROOT
from tests.test_compose import ROLES, SERVICES, load
from tidewheel.distribution import release_version
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.values import parse_duration
from tidewheel.migrations.runner import PATIENCE_SECONDS
from tidewheel.migrations.service_roles import role_of
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import ApiSettings, SchedulerSettings

pytestmark = pytest.mark.process

Manifest = dict[str, Any]

KUBERNETES = ("1.29", "1.37")
LEAST: Manifest = {"database": {"hosts": "pg-1,pg-2:5433"}, "kafka": {"bootstrap": "kafka:9092"}}
FULL: Manifest = {
    "database": {**LEAST["database"], "rolePrefix": "shop"},
    "kafka": {"bootstrap": "kafka-1:9092,kafka-2:9094", "secret": "kafka-client"},
    "migrate": {"post": release_version()},
    "secretsFrom": ["registry"],
    "pod": {"nodeSelector": {"pool": "jobs"}, "serviceAccountName": "jobs"},
    "settings": {
        "TIDEWHEEL_SOURCE": "shop",
        "TIDEWHEEL_CATCH_UP_RATE": 1_000_000,
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/otlp",
    },
    "services": {
        "scheduler": {"settings": {"TIDEWHEEL_RETENTION": "30d"}},
        "api": {"secretsFrom": ["sign-in"], "pod": {"serviceAccountName": "reads-archive"}},
    },
    "executors": {
        "default": {
            "queues": ["default", "bulk.slow"],
            "handlers": ["shop"],
            "scaling": {"enabled": True},
            "secretsFrom": ["payments"],
        },
        "calls": {
            "queues": ["calls"],
            "drainSeconds": 3600,
            "settings": {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://traces.example.org/v1"},
        },
    },
    "api": {"ingress": {"enabled": True, "host": "jobs.example.org", "className": "nginx", "tlsSecret": "jobs-tls"}},
    "archive": {"to": "s3://runs/archive", "secretsFrom": ["bucket"]},
    "monitoring": {"prometheus": "http://prometheus:9090", "podMonitor": True, "rules": True, "labels": {"for": "us"}},
    "networkPolicy": {"ports": [6432, 9092]},
}
WRONG: tuple[tuple[Manifest, str], ...] = (
    ({}, "/database/hosts"),
    (LEAST | {"database": {"hosts": "user:secret@pg"}}, "/database/hosts"),
    (LEAST | {"kafka": {"bootstrap": "kafka"}}, "/kafka/bootstrap"),
    (LEAST | {"settings": {"TIDEWHEEL_API_TOKEN": "secret"}}, "TIDEWHEEL_API_TOKEN"),
    (LEAST | {"executors": {"default": {"replicas": 0}}}, "/executors/default/replicas"),
    (LEAST | {"executors": {"default": {"targets": ["https"]}}}, "/executors/default/targets"),
    (LEAST | {"archive": {"to": "/srv/archive"}}, "/archive/to"),
    (LEAST | {"replicas": 3}, "replicas"),
    (LEAST | {"migrate": {"post": True}}, "/migrate/post"),
    (LEAST | {"database": {"hosts": "pg", "rolePrefix": "Shop-1"}}, "/database/rolePrefix"),
    (LEAST | {"executors": {"default": {"scaling": {"enabled": True}}}}, "monitoring.prometheus is empty"),
    (
        LEAST | {"executors": {"default": {"scaling": {"enabled": True, "min": 5, "max": 2}}}},
        "executors.default.scaling.min is above max",
    ),
    (LEAST | {"migrate": {"forgetSilent": "30s"}}, "/migrate/forgetSilent"),
    (LEAST | {"settings": {"TIDEWHEEL_DRAIN_TIMEOUT": "5m"}}, "executors.NAME.drainSeconds"),
)
# The library is Helm's own Go code. It runs in a process of its own, for a Go runtime stays in the one that loads it.
PROGRAM = """
import json, sys
import helm_python as helm

reports = []
for values in json.load(sys.stdin):
    reports.append({"lint": helm.lint("chart", values, strict=True)["errors"]})
    try:
        with helm.Chart.load("chart") as chart:
            reports[-1]["rendered"] = chart.render(values, name="prod", namespace="jobs")
    except helm.HelmError as error:
        reports[-1]["error"] = str(error)
print(json.dumps(reports))
"""


def helm(*values: Manifest) -> list[dict[str, Any]]:
    """Return what Helm reports of each of these values."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(values), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return cast("list[dict[str, Any]]", json.loads(done.stdout))


@cache
def rendered(which: str) -> list[Manifest]:
    [report] = helm(FULL if which == "full" else LEAST)
    assert "error" not in report, report
    assert report["lint"] == []
    return objects(report["rendered"])


def objects(files: dict[str, str]) -> list[Manifest]:
    texts = [text for name, text in files.items() if not name.endswith("NOTES.txt")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each is not None]


def of_kind(kind: str, which: str = "full") -> list[Manifest]:
    return [each for each in rendered(which) if each["kind"] == kind]


def pods(which: str = "full") -> list[Manifest]:
    """Return the specification of every pod."""
    templates = [each["spec"].get("jobTemplate", each)["spec"].get("template") for each in rendered(which)]
    return [each["spec"] for each in templates if each is not None]


def containers(which: str = "full") -> list[Manifest]:
    return [each for spec in pods(which) for each in (*spec.get("initContainers", ()), *spec["containers"])]


def variables(container: Manifest) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


@pytest.mark.parametrize("which", ["least", "full"])
def test_kubernetes_accepts_every_object(which: str) -> None:
    for each in rendered(which):
        if each["apiVersion"].split("/")[0] not in ("keda.sh", "monitoring.coreos.com"):  # not of Kubernetes itself
            for version in KUBERNETES:
                kubernetes_validate.validate(each, version, strict=True)
    assert len({(each["kind"], each["metadata"]["name"]) for each in rendered(which)}) == len(rendered(which))


def test_wrong_values_are_refused_with_their_path() -> None:
    reports = helm(*(values for values, _ in WRONG))
    for report, (values, named) in zip(reports, WRONG, strict=True):
        assert named in report["error"], values


def test_executors_may_have_every_type_of_target() -> None:
    schema = json.loads((ROOT / "chart/values.schema.json").read_text())
    assert schema["$defs"]["pool"]["properties"]["targets"]["items"]["enum"] == [*TARGETS]


def test_each_container_runs_a_command_of_the_cli() -> None:
    ran: list[str] = []
    for container in containers():
        ran.append(" ".join(container["args"]))
        command, words = find_command(container["args"])
        command.make_context(
            container["name"], [word for word in words if word not in ("--passwords", "/run/passwords")]
        )
    migrations = [
        "migrate --roles --passwords /run/passwords",
        "admin topics apply --queues default,calls,bulk.slow",
        "migrate --post",
    ]
    assert sorted(ran) == sorted(
        [*migrations, "admin archive run", *(f"service {each}" for each in (*SERVICES, "executor"))]
    )


def test_every_variable_is_a_setting_and_none_is_a_secret() -> None:
    known = {
        f"TIDEWHEEL_{field.upper()}"
        for model in (Connections, ExecutorSettings, ApiSettings, SchedulerSettings)
        for field in model.model_fields
    }
    for container in containers():
        told = variables(container)
        assert {name for name in told if not name.startswith("OTEL_")} <= known | {"TIDEWHEEL_CONFIG"}
        assert (told["TIDEWHEEL_ROLE_PREFIX"], "OTEL_EXPORTER_OTLP_ENDPOINT" in told) == ("shop", True)
        assert {each.get("valueFrom") for each in container["env"]} == {None}
    assert of_kind("Secret") == []


def test_each_service_has_the_password_of_its_own_role_alone() -> None:
    for each in of_kind("Deployment"):
        spec = each["spec"]["template"]["spec"]
        [container] = spec["containers"]
        url = f"postgresql://{role_of(container['name'], 'shop')}@pg-1,pg-2:5433/tidewheel?require_auth=scram-sha-256"
        assert variables(container)["TIDEWHEEL_DATABASE_URL"] == url
        [database] = [volume["secret"] for volume in spec["volumes"] if volume["name"] == "database"]
        assert database["items"] == [{"key": container["name"], "path": "password"}]
    [job] = of_kind("Job", "least")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    [passwords] = [each for each in job["spec"]["template"]["spec"]["volumes"] if each["name"] == "passwords"]
    assert {item["key"] for item in passwords["secret"]["items"]} == set(ROLES)
    page = (ROOT / "chart" / "README.md").read_text()
    assert f"for name in owner {' '.join(ROLES)}; do" in page


def test_later_migrations_follow_the_pods_and_helm_waits_for_all_tries() -> None:
    first, later = of_kind("Job")
    assert later["metadata"]["annotations"]["helm.sh/hook"] == "post-upgrade"
    page = (ROOT / "chart" / "README.md").read_text()
    [minutes] = set(re.findall(r"helm (?:install|upgrade) .*--timeout (\d+)m", page))
    tries = first["spec"]["backoffLimit"] + 1
    pauses = sum(min(10 * 2**number, 360) for number in range(tries - 1))  # of Kubernetes, between two tries
    assert tries * PATIENCE_SECONDS + pauses < int(minutes) * 60
    assert later["spec"]["activeDeadlineSeconds"] < int(minutes) * 60
    for job in (first, later):
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never", "or the logs of a job that failed are lost"


@pytest.mark.parametrize(
    ("migrate", "ran"),
    [
        ({"post": "0.1.0"}, []),
        ({"post": release_version(), "forgetSilent": "5m"}, ["migrate", "--post", "--forget-silent", "5m"]),
    ],
)
def test_later_migrations_run_in_the_release_that_the_value_names(migrate: Manifest, ran: list[str]) -> None:
    files = helm(LEAST | {"migrate": migrate})[0]["rendered"]
    _, *later = [each["spec"]["template"]["spec"] for each in objects(files) if each["kind"] == "Job"]
    assert [spec["containers"][0]["args"] for spec in later] == ([ran] if ran else [])
    [notes] = [text for name, text in files.items() if name.endswith("NOTES.txt")]
    assert ("migrate --post" in notes) == (not ran), "or a mistyped version is not seen"
    [created] = re.findall(r"-- tidewheel (admin api-key create .*)", notes)
    command, words = find_command(created.split())
    command.make_context("create", words)


@pytest.mark.parametrize("which", ["least", "full"])
def test_services_have_probes_time_to_drain_and_budgets(which: str) -> None:
    deployments, budgets = of_kind("Deployment", which), of_kind("PodDisruptionBudget", which)
    scaled = [each["spec"]["scaleTargetRef"]["name"] for each in of_kind("ScaledObject", which)]
    for each, budget in zip(deployments, budgets, strict=True):
        spec = each["spec"]["template"]["spec"]
        [container] = spec["containers"]
        assert container["ports"][0] == {"name": "metrics", "containerPort": 9464}
        assert variables(container)["TIDEWHEEL_METRICS_PORT"] == "9464"
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
        drain = parse_duration(variables(container).get("TIDEWHEEL_DRAIN_TIMEOUT", "0s"))
        assert spec["terminationGracePeriodSeconds"] > drain.total_seconds() + 15
        # The peak of 653 MB that tests/faults/test_memory.py found, and some more.
        assert container["resources"]["limits"]["memory"] == "768Mi"
        selector = each["spec"]["selector"]["matchLabels"]
        assert selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()
        assert budget["spec"] == {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector},
        }
        assert {each["labelSelector"]["matchLabels"] == selector for each in spec["topologySpreadConstraints"]} == {
            True
        }
        assert ("replicas" in each["spec"]) == (each["metadata"]["name"] not in scaled)


def test_pods_are_confined_as_the_containers_of_compose() -> None:
    for spec in pods():
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False  # else Kubernetes sets TIDEWHEEL_API_PORT
    for container in containers():
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    assert {container["image"] for container in containers()} == {load("compose.yaml")["executor"]["image"]}


def test_values_of_all_pods_reach_each_pod_and_those_of_one_win() -> None:
    for spec in pods():
        [*_, container] = spec["containers"]
        is_api = container["name"] == "api"
        assert spec["nodeSelector"] == {"pool": "jobs"}
        assert spec["serviceAccountName"] == ("reads-archive" if is_api else "jobs")
        named = [each["secretRef"]["name"] for each in container["envFrom"]]
        assert named[0] == "registry"
        assert ("sign-in" in named) == is_api
        assert variables(container)["TIDEWHEEL_CATCH_UP_RATE"] == "1000000"


def test_an_authority_of_ones_own_verifies_each_connection() -> None:
    found = objects(helm(LEAST | {"database": {**LEAST["database"], "ca": "our-authority"}})[0]["rendered"])
    for spec in (each["spec"]["template"]["spec"] for each in found if each["kind"] in ("Deployment", "Job")):
        assert {"ca": "our-authority"}.items() <= {
            each["name"]: each.get("secret", {}).get("secretName") for each in spec["volumes"]
        }.items()
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            [path] = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "ca"]
            url = conninfo_to_dict(variables(container)["TIDEWHEEL_DATABASE_URL"])
            assert (url["sslmode"], url["sslrootcert"]) == ("verify-full", f"{path}/ca.crt")


def test_policies_and_the_service_select_their_pods() -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"] for kind in ("Deployment", "Job") for each in of_kind(kind)
    ]
    for each in of_kind("NetworkPolicy"):
        wanted = each["spec"]["podSelector"]["matchLabels"]
        assert any(wanted.items() <= found.items() for found in labels), each["metadata"]["name"]
    for which, ports in (("least", {5432, 5433, 9092}), ("full", {5432, 5433, 9092, 9094, 6432, 4318, 443})):
        [every] = [each for each in of_kind("NetworkPolicy", which) if each["metadata"]["name"] == "prod-tidewheel"]
        names, connections = every["spec"]["egress"]
        assert [each["port"] for each in names["ports"]] == [53, 53]
        assert sorted(each["port"] for each in connections["ports"]) == sorted(ports)
    [ahead] = [each for each in of_kind("NetworkPolicy") if "helm.sh/hook" in each["metadata"].get("annotations", {})]
    assert ahead["spec"]["egress"] == every["spec"]["egress"], "or a new port keeps the job from PostgreSQL"
    [service] = of_kind("Service")
    assert len([found for found in labels if service["spec"]["selector"].items() <= found.items()]) == 1


def test_executors_scale_on_due_runs_of_their_queues_and_rules_are_those_of_compose() -> None:
    [scaled] = of_kind("ScaledObject")
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["query"] == (
        'sum(max by (queue, lane) (tidewheel_runs_due{queue="default",namespace="jobs"}'
        ' or tidewheel_runs_due{queue="bulk.slow",namespace="jobs"}))'
        ' or 0 * max(tidewheel_outbox_due{namespace="jobs"})'
    )
    assert trigger["metadata"]["ignoreNullValues"] == "false", "or a lost scrape scales down under a backlog"
    [rules] = of_kind("PrometheusRule")
    assert rules["spec"] == yaml.safe_load((ROOT / "compose" / "alerts.yml").read_text())

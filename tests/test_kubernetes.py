"""The manifests of Kubernetes say what the code knows: commands, settings, ports, probes."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
import yaml

from tests.strict_types import ROOT
from tests.test_compose import SERVICES, load
from tidewheel.control.cli.commands import root_command
from tidewheel.settings.api import ApiSettings
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings

Manifest = dict[str, Any]

SECRETS = {"TIDEWHEEL_DATABASE_URL", "TIDEWHEEL_KAFKA_BOOTSTRAP", "TIDEWHEEL_API_TOKEN"}


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    content = yaml.safe_load((ROOT / "compose" / "kubernetes.yaml").read_text())
    return cast("list[Manifest]", content["items"])


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for each in manifests:
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"]


def containers(manifests: list[Manifest]) -> list[Manifest]:
    found = [pod["spec"] for _, pod in pods(manifests)]
    return [each for spec in found for each in (*spec.get("initContainers", ()), *spec["containers"])]


def test_each_container_runs_a_command_of_the_cli(manifests: list[Manifest]) -> None:
    ran: list[list[str]] = []
    for container in containers(manifests):
        command: Any = root_command()
        words = list(container["args"])
        ran.append(list(words))
        while words and words[0] in getattr(command, "commands", ()):
            command = command.commands[words.pop(0)]
        command.make_context(container["name"], words)
    assert ran == [["migrate"], ["topics", "apply"], *([name] for name in SERVICES)]


def test_every_variable_is_a_setting_and_the_secret_has_the_addresses(manifests: list[Manifest]) -> None:
    known = {
        f"TIDEWHEEL_{field.upper()}"
        for model in (Connections, ExecutorSettings, ApiSettings)
        for field in model.model_fields
    }
    [config] = [each for each in manifests if each["kind"] == "ConfigMap"]
    assert set(config["data"]) | SECRETS <= known
    assert not set(config["data"]) & SECRETS
    for container in containers(manifests):
        names = [next(iter(each.values()))["name"] for each in container["envFrom"]]
        assert names == ["tidewheel", "tidewheel"]
    page = (ROOT / "docs" / "tasks.md").read_text()
    for name in SECRETS:
        assert f"--from-literal={name}=" in page


def test_services_have_probes_of_their_port_and_time_to_drain(manifests: list[Manifest]) -> None:
    [config] = [each for each in manifests if each["kind"] == "ConfigMap"]
    drain = ExecutorSettings.model_fields["drain_timeout"].get_default(call_default_factory=True)
    deployments = [each for each in manifests if each["kind"] == "Deployment"]
    assert [each["metadata"]["name"] for each in deployments] == [f"tidewheel-{name}" for name in SERVICES]
    for each in deployments:
        spec = each["spec"]["template"]["spec"]
        [container] = spec["containers"]
        assert [port["containerPort"] for port in container["ports"]] == [int(config["data"]["TIDEWHEEL_METRICS_PORT"])]
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
        assert spec["terminationGracePeriodSeconds"] > drain.total_seconds() + 15
        assert each["spec"]["replicas"] == 2
        # The peak of 653 MB that tests/faults/test_memory.py found, and some more.
        assert container["resources"]["limits"]["memory"] == "768Mi"


def test_each_service_keeps_a_pod_while_a_node_is_drained(manifests: list[Manifest]) -> None:
    selectors = [each["spec"]["selector"] for each in manifests if each["kind"] == "Deployment"]
    budgets = [each["spec"] for each in manifests if each["kind"] == "PodDisruptionBudget"]
    assert [each["selector"] for each in budgets] == selectors
    assert {each["maxUnavailable"] for each in budgets} == {1}


def test_selectors_find_their_pods(manifests: list[Manifest]) -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(manifests)}
    for each in manifests:
        if each["kind"] == "Deployment":
            assert each["spec"]["selector"]["matchLabels"] == labels[each["metadata"]["name"]]
    [service] = [each for each in manifests if each["kind"] == "Service"]
    assert service["spec"]["selector"] == labels["tidewheel-api"]
    [config] = [each for each in manifests if each["kind"] == "ConfigMap"]
    assert [port["targetPort"] for port in service["spec"]["ports"]] == [int(config["data"]["TIDEWHEEL_API_PORT"])]


def test_pods_are_confined_as_the_containers_of_compose(manifests: list[Manifest]) -> None:
    for _, pod in pods(manifests):
        assert pod["spec"]["securityContext"]["runAsUser"] == 10001
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    for container in containers(manifests):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    compose = load("compose.yaml")["executor"]["image"]
    assert {container["image"] for container in containers(manifests)} == {compose}

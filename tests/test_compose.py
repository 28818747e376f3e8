"""The compose files say what the code knows: commands, settings, health, order."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.control.cli.command import find_command
from tests.strict_types import ROOT
from tidewheel.control.services import STOP_SECONDS
from tidewheel.local.broker_config import KafkaPasswords, Node, server_properties
from tidewheel.local.postgres import find_programs
from tidewheel.migrations.service_roles import SERVICES as ROLES
from tidewheel.migrations.service_roles import role_of
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import ApiSettings, IntakeSettings, RelaySettings, SchedulerSettings

SERVICES = ("intake", "scheduler", "relay", "executor", "api")
ONCE = ("migrate", "topics")
OURS = (*SERVICES, *ONCE)

pytestmark = pytest.mark.process

Service = dict[str, Any]

# The program names the project after the folder and keeps caches at home.
ENVIRONMENT = {"PATH": os.defpath, "HOME": "/nowhere"}


FILES = ("compose.yaml", "deployed.yaml")
DATABASE = "postgresql://{user}@postgres,postgres-2/tidewheel?require_auth=scram-sha-256"


@cache
def load(name: str) -> dict[str, Service]:
    """Return the services as the real program of Docker reads them, with all that they extend."""
    command = [tool("docker-compose"), "-f", ROOT / "compose" / name, "--profile", "*", "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    assert "level=warning" not in done.stderr, done.stderr
    return cast("dict[str, Service]", json.loads(done.stdout)["services"])


def tool(name: str) -> Path:
    """Return a program of the locked set; without it a check fails, and is not skipped."""
    found = Path(sys.executable).parent / name
    assert found.exists(), f"{found} is missing: run `make setup`"
    return found


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    return load("compose.yaml")


def environments() -> Iterator[tuple[str, dict[str, str]]]:
    for file in FILES:
        for name, service in load(file).items():
            yield name, service.get("environment", {})


@pytest.mark.parametrize("file", FILES)
def test_each_command_is_a_command_of_the_cli(file: str) -> None:
    for name in (*OURS, *(("archive",) if file == "deployed.yaml" else ())):
        command, arguments = find_command(load(file)[name]["command"])
        if [*arguments[-1:]] == ["/run/passwords"]:
            arguments = arguments[:-2]  # a folder that exists in the container alone
        context = command.make_context(name, [*arguments])
        assert not hasattr(context.command, "commands"), "a group of commands, not one"


def test_every_environment_name_is_a_setting() -> None:
    models = (Connections, IntakeSettings, SchedulerSettings, RelaySettings, ExecutorSettings, ApiSettings)
    known = {f"TIDEWHEEL_{field.upper()}" for model in models for field in model.model_fields}
    used = {name for service, environment in environments() if service in OURS for name in environment}
    assert used - known == {"TIDEWHEEL_CONFIG"}, "the file of the API's token"
    assert {"TIDEWHEEL_DATABASE_URL", "TIDEWHEEL_KAFKA_BOOTSTRAP", "TIDEWHEEL_REPLICATION"} <= used


@pytest.mark.parametrize("file", FILES)
def test_services_wait_for_schema_and_topics_and_those_for_health(file: str) -> None:
    services = load(file)

    def waits(name: str) -> dict[str, str]:
        return {other: each["condition"] for other, each in services[name]["depends_on"].items()}

    for name in SERVICES:
        assert waits(name) == dict.fromkeys(ONCE, "service_completed_successfully"), name
    for once, kind in (("migrate", "postgres"), ("topics", "kafka")):
        assert waits(once) == {name: "service_healthy" for name in services if name.split("-")[0] == kind}


@pytest.mark.parametrize("file", FILES)
def test_all_services_have_health_checks_and_restart(file: str) -> None:
    for name, service in load(file).items():
        if name in ONCE:
            assert service["restart"] == "on-failure:5", name
        elif name != "archive":
            assert service["healthcheck"]["test"][0] == "CMD", name
            assert service["restart"] == "unless-stopped", name


@pytest.mark.parametrize("file", FILES)
def test_services_end_themselves_before_docker_kills_them(file: str) -> None:
    drain = ExecutorSettings.model_fields["drain_timeout"].get_default()
    for name in SERVICES:
        minutes, seconds = re.findall(r"(?:(\d)m)?(\d+)s", load(file)[name]["stop_grace_period"])[0]
        needed = STOP_SECONDS + (drain.total_seconds() if name == "executor" else 0)
        assert 60 * int(minutes or 0) + int(seconds) > needed, name


def test_images_have_the_versions_of_the_embedded_stack(services: dict[str, Service]) -> None:
    from tidewheel.local.jars import KAFKA_VERSION

    assert services["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    programs = find_programs(None)
    version = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    assert services["postgres"]["image"] == f"postgres:{version.split()[-1]}"
    assert len({services[name]["image"] for name in OURS}) == 1


@pytest.mark.parametrize("file", FILES)
def test_brokers_have_the_settings_of_the_embedded_one(file: str) -> None:
    count = 1 if file == "compose.yaml" else 3
    nodes = [Node(node_id=number, port=number, controller_port=number) for number in range(1, count + 1)]
    passwords = KafkaPasswords(client="one", node="other")
    lines = server_properties(nodes[0], nodes, Path("/data"), passwords).splitlines()
    wanted = dict(line.split("=", 1) for line in lines)
    brokers = {name: each["environment"] for name, each in load(file).items() if name.split("-")[0] == "kafka"}
    told: dict[str, str] = brokers["kafka"]
    assert sorted(each["KAFKA_NODE_ID"] for each in brokers.values()) == [str(node.node_id) for node in nodes]
    alike = {name for name in told if name.startswith(("KAFKA_GROUP_", "KAFKA_AUTO_", "KAFKA_MIN_"))}
    alike |= {name for name in told if name.endswith(("_REPLICATION_FACTOR", "_MIN_ISR"))}
    for name in alike:
        assert told[name] == wanted[name.removeprefix("KAFKA_").lower().replace("_", ".")], name
    assert len(alike) >= 6


def test_passwords_are_secret_files_in_no_variable() -> None:
    for name, environment in environments():
        for variable, value in environment.items():
            if "PASSWORD" in variable or "SECRET" in variable:
                assert variable.endswith("_FILE"), (name, variable)
                assert value.startswith("/run/secrets/"), (name, variable)
            assert re.search(r"://\w+:[^@]*@", value) is None, (name, variable)
            assert "TOKEN" not in variable or not value, (name, variable)


def test_each_deployed_service_connects_to_both_servers_by_its_own_role_alone() -> None:
    services = load("deployed.yaml")
    for name in SERVICES:
        told = services[name]["environment"]
        assert told["TIDEWHEEL_DATABASE_URL"] == DATABASE.format(user=role_of(name))
        assert told["TIDEWHEEL_DATABASE_PASSWORD_FILE"] == f"/run/secrets/{name}"
        assert {each["source"] for each in services[name]["secrets"]} <= {name, "api_settings"}
        assert services[name]["deploy"]["replicas"] == 2
    passwords = {each["target"]: each["source"] for each in services["migrate"]["secrets"]}
    assert passwords == {
        "/run/secrets/postgres_password": "postgres_password",
        **{f"/run/passwords/{role}": role for role in ROLES},
    }
    for name in ("migrate", "topics", "archive"):
        assert services[name]["environment"]["TIDEWHEEL_DATABASE_URL"] == DATABASE.format(user="tidewheel")


def test_readme_makes_every_secret() -> None:
    page = (ROOT / "compose" / "README.md").read_text()
    named = {each["source"] for service in load("deployed.yaml").values() for each in service.get("secrets", ())}
    assert named == {*ROLES, "postgres_password", "api_settings", "grafana"}
    [roles] = re.findall(r"for name in (.*); do openssl", page)
    assert set(roles.split()) == {*ROLES, "postgres_password", "grafana"}
    assert "> compose/secrets/api.toml" in page


@pytest.mark.parametrize("file", FILES)
def test_containers_are_confined(file: str) -> None:
    services = load(file)
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert any(path.startswith("/tmp:") for path in service["tmpfs"]), name  # noqa: S108 - in a container
        assert service.get("user") not in ("root", "0", 0), name
    assert {services[name]["user"] for name in OURS} == {"10001:10001"}
    assert services["postgres"]["user"] == "postgres"


def test_prometheus_in_the_network_reaches_every_service_by_its_name(services: dict[str, Service]) -> None:
    for name in SERVICES:
        told = services[name]["environment"]
        assert told["TIDEWHEEL_METRICS_HOST"] == "0.0.0.0"  # noqa: S104 - in a container
        assert name in told["TIDEWHEEL_METRICS_HOSTS"].split(",")


def test_nothing_is_published_beyond_this_machine() -> None:
    for file in FILES:
        for name, service in load(file).items():
            assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", [])), name


def test_mounted_files_exist_and_monitoring_has_rules_and_dashboard() -> None:
    services = load("deployed.yaml")
    mounts = {
        each["target"]: Path(each["source"])
        for service in services.values()
        for each in service.get("volumes", ())
        if each["type"] == "bind"
    }
    assert all(source.is_file() for source in mounts.values())
    assert mounts["/etc/prometheus/alerts.yml"] == ROOT / "compose" / "alerts.yml"
    assert mounts["/etc/tidewheel/dashboard.json"] == ROOT / "compose" / "dashboard.json"
    scraped = yaml.safe_load(mounts["/etc/prometheus/deployed/prometheus.yml"].read_text())
    [found] = scraped["scrape_configs"][0]["dns_sd_configs"]
    assert (set(found["names"]), found["port"]) == (set(SERVICES), 9464)
    [provider] = yaml.safe_load(mounts["/etc/grafana/provisioning/dashboards/tidewheel.yml"].read_text())["providers"]
    assert provider["options"]["path"] == "/etc/tidewheel"
    [source] = yaml.safe_load(mounts["/etc/grafana/provisioning/datasources/tidewheel.yml"].read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_linter_finds_nothing_in_the_recipe_of_the_image() -> None:
    done = subprocess.run(
        [tool("hadolint"), ROOT / "compose" / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_image_runs_unprivileged_with_the_locked_set() -> None:
    steps = image_steps()
    assert steps[-3:] == [("USER", "10001:10001"), ("ENTRYPOINT", '["tidewheel"]'), ("CMD", '["--help"]')]
    [base], stages = (
        {text.split()[0] for word, text in steps if word == "FROM"},
        [text.partition(" AS ")[2] for word, text in steps if word == "FROM"],
    )
    assert (base, stages) == ("${PYTHON_IMAGE}", ["build", ""]), "one Python builds the environment and runs it"
    installs = [part for word, text in steps if word == "RUN" for part in text.split("&&") if "pip install" in part]
    assert all("--require-hashes -r requirements/" in part or "--no-deps /dist/" in part for part in installs)
    for text in [text for word, text in steps if word == "COPY"]:
        *flags, source, _ = text.split()
        where = [flag.removeprefix("--from=") for flag in flags]
        assert where == ["build"] if flags else (ROOT / source).exists(), text


def test_image_has_the_version_and_a_python_of_the_package(services: dict[str, Service]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    steps = image_steps()
    [labels] = [dict(part.split("=", 1) for part in shlex.split(text)) for word, text in steps if word == "LABEL"]
    assert labels["org.opencontainers.image.version"] == project["version"]
    assert labels["org.opencontainers.image.licenses"] == project["license"]
    assert services["migrate"]["image"] == f"tidewheel:{project['version']}"
    python = next(text.removeprefix("PYTHON_IMAGE=python:") for word, text in steps if word == "ARG")
    series = python.partition("-")[0]
    assert f"Programming Language :: Python :: {series}" in project["classifiers"]


def image_steps() -> list[tuple[str, str]]:
    """Return the instructions of the image's recipe, each of a known word, with its lines joined."""
    text = (ROOT / "compose" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    steps = [(word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in lines)]
    assert {word for word, _ in steps} <= {
        "ARG",
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "LABEL",
        "ENV",
        "USER",
        "ENTRYPOINT",
        "CMD",
    }
    return steps

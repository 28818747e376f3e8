"""The compose files say what the code knows: commands, settings, health, order."""

import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.strict_types import ROOT
from tidewheel.control.cli.commands import root_command
from tidewheel.local.broker_config import KafkaPasswords, Node, server_properties
from tidewheel.local.postgres_program import find_programs
from tidewheel.settings.api import ApiSettings
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import IntakeSettings, RelaySettings, SchedulerSettings

SERVICES = ("intake", "scheduler", "relay", "executor", "api")
ONCE = ("migrate", "topics")
OURS = (*SERVICES, *ONCE)

Service = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """Knows compose's own tags."""


_Loader.add_constructor("!override", lambda loader, node: loader.construct_sequence(cast("yaml.SequenceNode", node)))


def load(name: str) -> dict[str, Service]:
    content = yaml.load((ROOT / "compose" / name).read_text(), Loader=_Loader)  # noqa: S506 - a SafeLoader
    return cast("dict[str, Service]", content["services"])


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    return load("compose.yaml")


def environments() -> Iterator[tuple[str, dict[str, str]]]:
    for file in ("compose.yaml", "three-brokers.yaml"):
        for name, service in load(file).items():
            yield name, service.get("environment", {})


@pytest.mark.parametrize("name", OURS)
def test_each_command_is_a_command_of_the_cli(services: dict[str, Service], name: str) -> None:
    command: Any = root_command()
    words = list(services[name]["command"])
    while words and words[0] in getattr(command, "commands", ()):
        command = command.commands[words.pop(0)]
    context = command.make_context(name, words)
    assert not hasattr(context.command, "commands"), "a group of commands, not one"


def test_every_environment_name_is_a_setting() -> None:
    models = (Connections, IntakeSettings, SchedulerSettings, RelaySettings, ExecutorSettings, ApiSettings)
    known = {f"TIDEWHEEL_{field.upper()}" for model in models for field in model.model_fields}
    used = {name for service, environment in environments() if service in OURS for name in environment}
    assert used <= known
    assert {"TIDEWHEEL_DATABASE_URL", "TIDEWHEEL_KAFKA_BOOTSTRAP", "TIDEWHEEL_REPLICATION"} <= used


def test_services_wait_for_schema_and_topics_and_those_for_health(services: dict[str, Service]) -> None:
    for name in SERVICES:
        assert services[name]["depends_on"] == {
            once: {"condition": "service_completed_successfully"} for once in ONCE
        }, name
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}


def test_all_services_have_health_checks_and_restart(services: dict[str, Service]) -> None:
    for name in ("postgres", "kafka", *SERVICES):
        assert services[name]["healthcheck"]["test"][0] == "CMD", name
        assert services[name]["restart"] == "unless-stopped", name
    for name in ONCE:
        assert services[name]["restart"] == "on-failure:5", name


@pytest.mark.process
def test_images_have_the_versions_of_the_embedded_stack(services: dict[str, Service]) -> None:
    from tidewheel.local.jars import KAFKA_VERSION

    assert services["kafka"]["image"] == f"${{KAFKA_IMAGE:-apache/kafka:{KAFKA_VERSION}}}"
    programs = find_programs(None)
    version = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    assert services["postgres"]["image"] == f"${{POSTGRES_IMAGE:-postgres:{version.split()[-1]}}}"
    assert len({services[name]["image"] for name in OURS}) == 1


@pytest.mark.parametrize("file", ["compose.yaml", "three-brokers.yaml"])
def test_brokers_have_the_settings_of_the_embedded_one(file: str) -> None:
    count = 1 if file == "compose.yaml" else 3
    nodes = [Node(node_id=number, port=number, controller_port=number) for number in range(1, count + 1)]
    passwords = KafkaPasswords(client="one", node="other")
    lines = server_properties(nodes[0], nodes, Path("/data"), passwords).splitlines()
    wanted = dict(line.split("=", 1) for line in lines)
    told: dict[str, str] = load(file)["kafka"]["environment"]
    alike = {name for name in told if name.startswith(("KAFKA_GROUP_", "KAFKA_AUTO_", "KAFKA_MIN_"))}
    alike |= {name for name in told if name.endswith(("_REPLICATION_FACTOR", "_MIN_ISR"))}
    for name in alike:
        assert told[name] == wanted[name.removeprefix("KAFKA_").lower().replace("_", ".")], name
    assert len(alike) >= 6


def test_passwords_are_secret_files_in_no_variable(services: dict[str, Service]) -> None:
    for name, environment in environments():
        for variable, value in environment.items():
            if "PASSWORD" in variable or "SECRET" in variable:
                assert (variable.endswith("_FILE"), value) == (True, "/run/secrets/postgres_password"), (name, variable)
            assert "://tidewheel:" not in value, (name, variable)
    for name in (*OURS, "postgres"):
        assert services[name]["secrets"] == ["postgres_password"], name


@pytest.mark.parametrize("file", ["compose.yaml", "three-brokers.yaml"])
def test_containers_are_confined(file: str) -> None:
    base = load("compose.yaml")
    for name, service in load(file).items():
        confined = service if file == "compose.yaml" else base[service.get("extends", {}).get("service", name)]
        assert confined["read_only"] is True, name
        assert confined["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service | confined, name
        assert confined["security_opt"] == ["no-new-privileges:true"], name
        assert any(path.startswith("/tmp:") for path in confined["tmpfs"]), name  # noqa: S108 - in a container
        assert service.get("user", confined.get("user")) not in ("root", "0", 0), name
    assert {base[name]["user"] for name in OURS} == {"10001:10001"}
    assert base["postgres"]["user"] == "postgres"


def test_prometheus_in_the_network_reaches_every_service_by_its_name(services: dict[str, Service]) -> None:
    for name in SERVICES:
        told = services[name]["environment"]
        assert told["TIDEWHEEL_METRICS_HOST"] == "0.0.0.0"  # noqa: S104 - in a container
        assert name in told["TIDEWHEEL_METRICS_HOSTS"].split(",")


def test_nothing_is_published_beyond_this_machine() -> None:
    for file in ("compose.yaml", "three-brokers.yaml"):
        for name, service in load(file).items():
            assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


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
    [python] = [text.removeprefix("PYTHON_IMAGE=python:") for word, text in steps if word == "ARG"]
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

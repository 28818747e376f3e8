"""The group protocol is chosen by setting, and refused at start where the brokers cannot do it."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from uuid import uuid4

import pytest

from tests.fixtures.older_server import older_server
from tests.relay.topics import make_topics
from tidewheel.errors import SettingsError
from tidewheel.kafka.groups import GroupProtocol, group_protocol, quickest_protocol
from tidewheel.local import kafka
from tidewheel.local.daemon import run_program
from tidewheel.local.stack import LocalStack, StackInfo

pytestmark = pytest.mark.kafka

OFF = "--feature=group.version=0"
# ConsumerGroupHeartbeat, its versions 0 and 1, and the key of the API behind it. Source: Kafka protocol guide, API keys
HEARTBEAT = b"\x00\x44\x00\x00\x00\x01\x00\x00\x45"


@pytest.fixture(scope="module")
def topic() -> str:
    return f"t{uuid4().hex[:10]}.runs.critical"


@pytest.fixture(scope="module")
def able(info: StackInfo, topic: str) -> Mapping[str, str]:
    """A broker that can do both."""
    make_topics(info.kafka, [topic])
    return info.kafka


@pytest.fixture(scope="module")
def unable(info: StackInfo, topic: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """A broker on which the feature is off, as after an upgrade that was never finished."""

    def format_without(command: Sequence[str], *, cwd: Path) -> CompletedProcess[str]:
        return run_program([*command, OFF] if "format" in command else command, cwd=cwd)

    local = LocalStack(tmp_path_factory.mktemp("old"), brokers=1, database_url=info.database_url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka, "run_program", format_without)
        config = local.up().kafka
    try:
        make_topics(config, [topic])
        yield config
    finally:
        local.down(erase=True)


@pytest.mark.parametrize("wanted", ["classic", "consumer"])
def test_supported_group_protocol_is_used_as_configured(
    able: Mapping[str, str], topic: str, wanted: GroupProtocol
) -> None:
    assert group_protocol(able, wanted, topic=topic, probe=f"{topic}.probe") == wanted


def test_auto_selects_the_new_protocol_with_a_short_session_timeout(able: Mapping[str, str], topic: str) -> None:
    assert quickest_protocol(able, topic=topic, probe=f"{topic}.probe") == "consumer"


def test_brokers_before_kafka_4_get_the_classic_protocol(info: StackInfo, able: Mapping[str, str], topic: str) -> None:
    """They report version 0 of its request alone, and the client needs version 1."""
    with older_server(int(info.bootstrap.rpartition(":")[2]), HEARTBEAT, HEARTBEAT.replace(b"\x01", b"\x00")) as port:
        config = {**able, "bootstrap.servers": f"127.0.0.1:{port}"}
        assert group_protocol(config, "auto", topic=topic, probe=f"{topic}.probe") == "classic"
        with pytest.raises(SettingsError, match=r"EXECUTOR_GROUP=consumer: .* lack ConsumerGroupHeartbeat version 1"):
            group_protocol(config, "consumer", topic=topic, probe=f"{topic}.probe")


@pytest.mark.slow
@pytest.mark.parametrize("there", [True, False])
def test_missing_topic_does_not_fail_the_protocol_check(able: Mapping[str, str], topic: str, *, there: bool) -> None:
    named = topic if there else f"{topic}.missing"
    assert group_protocol(able, "consumer", topic=named, probe=f"{topic}.probe") == "consumer"


@pytest.mark.slow
def test_unsupported_group_protocol_is_refused_with_a_remedy(unable: Mapping[str, str], topic: str) -> None:
    config, probe = unable, f"{topic}.probe"
    with pytest.raises(SettingsError, match=r"EXECUTOR_GROUP=consumer: .* lack the .*group\.version=1.*classic"):
        group_protocol(config, "consumer", topic=topic, probe=probe)
    assert group_protocol(config, "classic", topic=topic, probe=probe) == "classic"
    assert group_protocol(config, "auto", topic=topic, probe=probe) == "classic"


@pytest.mark.landing
def test_member_leaves_although_an_assignment_waits_for_it(able: Mapping[str, str], topic: str) -> None:
    """`Consumer.close` alone waits for ever, with the GIL: a process of its own shows it by its timeout."""
    command = [sys.executable, "-m", "tests.tidewheel.kafka.leaving_members"]
    given = json.dumps([topic, {**able}])
    left = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert left.returncode == 0, left.stderr
    called = json.loads(left.stdout)
    assert ["assign", "revoke"] in called
    assert all(each in ([], ["assign", "revoke"]) for each in called), called

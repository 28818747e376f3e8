"""Allow-lists: they name what jobs may use, and nothing beside it."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidewheel.jobs.allow_lists import AllowLists, ProgramPattern
from tidewheel.jobs.http_values import read_url
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.settings.connections import Connections


def lists(**settings: object) -> AllowLists:
    return Connections.load(**settings).allow_lists(enforces=True)


def called(url: str, **settings: object) -> bool:
    try:
        lists(**settings).check_url(read_url(url))
    except InvalidValue:
        return False
    return True


def written(topic: str, **settings: object) -> bool:
    try:
        lists(**settings).check_topic(topic)
    except InvalidValue:
        return False
    return True


def invoked(function: str, qualifier: str | None = None, region: str | None = None, *, allowed: str) -> bool:
    try:
        lists(lambda_functions=allowed).check_function(function, qualifier, region)
    except InvalidValue:
        return False
    return True


@pytest.mark.parametrize(
    ("hosts", "host", "passes"),
    [
        ("*", "a.example", True),
        ("a.example", "A.Example", True),
        ("a.example", "a.example.", True),
        ("a.example", "b.a.example", False),
        ("*.a.example", "b.a.example", True),
        ("*.a.example", "c.b.a.example", True),
        ("*.a.example", "a.example", False),
        ("*.a.example", "evila.example", False),
        ("*.a.example", "a.example.evil.example", False),
        ("*.b\u00fccher.example", "a.xn--bcher-kva.example", True),
        ("1.1.1.1", "0x01010101", True),
        ("1.1.1.1", "1.1.1.2", False),
        ("[2606:4700::1111]", "[2606:4700:0::1111]", True),
        ("a.example, b.example", "b.example", True),
        ("a.example", "1.1.1.1", False),
    ],
)
def test_only_named_hosts_are_called(hosts: str, host: str, passes: bool) -> None:  # noqa: FBT001 - a case
    assert called(f"https://{host}/", http_hosts=hosts) is passes


@pytest.mark.parametrize(
    ("settings", "ports", "others"),
    [
        ({}, (80, 443), (22, 8080)),
        ({"http_ports": "8443,80"}, (80, 8443), (443, 22)),
        ({"http_ports": "*"}, (1, 80, 65535), ()),
        ({"http_allow_private": True}, (1, 80, 65535), ()),
        ({"http_allow_private": True, "http_ports": "80"}, (80,), (443, 8080)),
    ],
)
def test_only_named_ports_are_called(settings: dict[str, object], ports: tuple[int], others: tuple[int]) -> None:
    assert all(called(f"http://a.example:{port}/", **settings) for port in ports)
    assert not any(called(f"http://a.example:{port}/", **settings) for port in others)
    assert called("https://a.example/", **settings) == (443 in ports or "*" in str(settings) or len(ports) == 3)


@pytest.mark.parametrize(
    "topic",
    [
        "tidewheel", "tidewheel.requests", "tidewheel.replies", "tidewheel.runs.standard",
        "tidewheel.runs.reports.batch",
        "tidewheel.completions", "tidewheel.events", "tidewheel.dead-letters", "tidewheel.outputs",
        "tidewheel.target-replies", "tidewheel.acme.requests", "Tidewheel.requests", "TIDEWHEEL.RUNS.STANDARD",
        "tidewheel_requests", "Tidewheel_Runs.standard",
    ],
)  # fmt: skip
def test_own_topics_are_never_written(topic: str) -> None:
    assert not written(topic, kafka_topics="*")
    with pytest.raises(InvalidValue, match="one of Tidewheel's own topics"):
        AllowLists().check_topic(topic)  # of intake, which knows no list
    own = topic.lower().replace("tidewheel", "My_Prefix")
    assert not written(own, kafka_topics="*", topic_prefix="my.prefix")
    assert written(topic, kafka_topics="*", topic_prefix="my.prefix")


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state", "__orders"])
def test_internal_topics_of_kafka_are_never_written(topic: str) -> None:
    assert not written(topic, kafka_topics="*")
    assert not written(topic, kafka_topics=topic)
    with pytest.raises(InvalidValue, match="an internal Kafka topic"):
        AllowLists().check_topic(topic)  # of intake, which knows no list


@pytest.mark.parametrize(
    ("topics", "topic", "passes"),
    [
        ("", "orders", False),
        ("orders", "orders", True),
        ("orders", "orders-2", False),
        ("orders.*", "orders.new", True),
        ("orders.*", "orders", False),
        ("orders.*\ninvoices", "invoices", True),
        ("Orders", "orders", False),  # Kafka tells them apart
        ("*", "tidewheels", True),
        ("*", "tidewheel-orders", True),
    ],
)
def test_only_named_topics_are_written(topics: str, topic: str, passes: bool) -> None:  # noqa: FBT001 - a case
    assert written(topic, kafka_topics=topics) is passes


ARN = "arn:aws:lambda:eu-west-1:123456789012:function:report"


@pytest.mark.parametrize(
    ("allowed", "call", "passes"),
    [
        ("", ("report",), False),
        ("report", ("report",), True),
        ("report", ("report", "live"), False),
        ("report:live", ("report", "live"), True),
        ("report:live", ("report:live",), True),
        ("report", ("report", None, "us-east-1"), False),
        ("us-east-1:report", ("report", None, "us-east-1"), True),
        ("report", (ARN,), False),
        ("arn:aws:lambda:eu-west-1:123456789012:function:report*", (ARN, "live"), True),
        ("arn:aws:lambda:*:123456789012:function:*", (ARN.replace("123456789012", "999999999999"),), False),
        ("*", (ARN,), True),
    ],
)
def test_only_named_functions_are_invoked(allowed: str, call: tuple[str, ...], passes: bool) -> None:  # noqa: FBT001 - a case
    assert invoked(*call, allowed=allowed) is passes


def test_list_that_a_process_does_not_have_refuses_nothing_there() -> None:
    """Intake knows some lists; the executor has them all."""
    unknown = Connections.load().allow_lists()
    unknown.check_topic("orders")
    unknown.check_function("report", None, None)
    unknown.check_program(["/bin/sh"], "/", {"A": "b"})
    for check in (
        lambda: lists().check_topic("orders"),
        lambda: lists().check_function("report", None, None),
        lambda: lists().check_program(["/bin/sh"], None, {}),
    ):
        with pytest.raises(InvalidValue, match="TIDEWHEEL_"):
            check()


WORDS = st.text(alphabet="ab-=*?[]!0.\n /", max_size=6)
PATTERNS = st.text(alphabet="ab-=*?[]!0", min_size=1, max_size=6).filter(lambda text: text != "...")


@given(st.lists(PATTERNS, max_size=4), st.lists(WORDS, max_size=5), st.booleans())
@example(patterns=["--name=*", "[0-9]*"], words=["--name=a", "0"], more=False)
def test_program_runs_only_if_its_whole_line_matches(patterns: list[str], words: list[str], more: bool) -> None:  # noqa: FBT001
    """Against each word alone: none is left out, none exchanged, and no further one passes without `...`."""
    quoted = " ".join(f"'{pattern}'" for pattern in patterns)
    pattern = ProgramPattern.read(f"/bin/p {quoted}{' ...' if more else ''}")
    pairs = list(zip(words, patterns, strict=False))
    fits = len(words) >= len(patterns) if more else len(words) == len(patterns)
    assert pattern.allows(["/bin/p", *words]) == (fits and all(fnmatchcase(word, one) for word, one in pairs))
    for other in ("/bin/q", "bin/p", "p", "./p", "/bin/./p", "/bin/p/", "/bin/P", ""):
        assert not pattern.allows([other, *words])
    assert not pattern.allows([])


@given(st.lists(st.text(alphabet="ab -='\"\\*é", min_size=1, max_size=6), max_size=4))
def test_list_in_a_file_means_what_is_written(words: list[str]) -> None:
    """Quotes keep blanks together, as in a shell."""
    quoted = " ".join("'" + word.replace("'", "'\"'\"'") + "'" for word in words)
    assert ProgramPattern.read(f"/bin/p {quoted}").arguments == tuple(words)


def test_long_argument_is_matched_in_linear_time() -> None:
    pattern = ProgramPattern.read("/bin/p " + "*a" * 30 + "b")
    assert not pattern.allows(["/bin/p", "a" * 50_000])

"""Sign-in by an API key: what opens pages, what ends a sign-in, and forms of other sites."""

from collections.abc import Iterator
from datetime import timedelta
from http import HTTPStatus

import pytest

from tests.control.api.answering import ApiClient, answering
from tests.control.console.pages import HTML, TOKEN, console, form_of, key_of, sign_in, signed_in
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.api_keys import new_key
from tidewheel.clock import monotonic_seconds
from tidewheel.control.api import key_check
from tidewheel.control.client.client import Client
from tidewheel.control.console.sign_in import COOKIE, LIFE_SECONDS, Signer, SignIn
from tidewheel.jobs.values import format_timestamp


@pytest.fixture
def door(database: Database) -> Iterator[ApiClient]:
    with console(database) as client:
        yield client


def test_page_without_a_sign_in_leads_to_the_sign_in_page_and_back(door: ApiClient) -> None:
    away = door.get("/jobs?prefix=a b")
    assert away.status_code == HTTPStatus.SEE_OTHER
    assert away.headers["location"] == "/sign-in?next=/jobs%3Fprefix%3Da%2520b"
    back = sign_in(door, key_of(door.database), away.headers["location"], next="/jobs?prefix=a%20b")
    assert (back.status_code, back.headers["location"]) == (HTTPStatus.SEE_OTHER, "/jobs?prefix=a%20b")
    assert door.get(back.headers["location"]).status_code == HTTPStatus.OK


def test_page_names_the_installation_and_where_a_key_comes_from(database: Database, door: ApiClient) -> None:
    page = door.get("/sign-in").text
    assert f"127.0.0.1:{door.base_url.port}</bdi>" in page
    assert "tidewheel key create NAME --scope read" in page
    assert 'class="rail"' not in page
    with console(database, console_name="Berlin <b>") as named:
        assert "Berlin &lt;b&gt;</bdi></span></p>" in named.get("/sign-in").text


def test_cookie_is_kept_from_scripts_and_other_sites_and_holds_no_secret(door: ApiClient) -> None:
    key = key_of(door.database)
    answer = sign_in(door, key)
    [cookie] = [each for each in answer.headers.get_list("set-cookie") if each.startswith(COOKIE)]
    assert {"HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={LIFE_SECONDS}"} <= set(cookie.split("; "))
    assert key not in cookie
    assert key.split("_")[2] not in cookie
    assert key not in door.get("/").text


def test_cookie_goes_by_https_alone_once_the_browser_came_by_https(door: ApiClient) -> None:
    form = form_of(door.get("/sign-in")) | {"key": key_of(door.database)}
    proxied = {"Origin": "https://jobs.example.org", "Sec-Fetch-Site": "same-origin"}
    answer = door.post("/sign-in", data=form, headers=proxied)
    assert answer.status_code == HTTPStatus.SEE_OTHER
    assert "Secure" in answer.headers["set-cookie"].split("; ")


def test_key_typed_into_a_page_that_came_by_plain_http_from_afar_is_refused(door: ApiClient) -> None:
    form = form_of(door.get("/sign-in")) | {"key": key_of(door.database)}
    answer = door.post("/sign-in", data=form, headers={"Origin": "http://jobs.example.org", "Host": "jobs.example.org"})
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "Open it by HTTPS" in answer.text
    assert COOKIE not in answer.headers.get("set-cookie", "")


def test_renewal_behind_a_proxy_keeps_the_cookie_from_plain_http(
    door: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = form_of(door.get("/sign-in")) | {"key": key_of(door.database)}
    first = door.post("/sign-in", data=form, headers={"Origin": "https://jobs.example.org", "Host": "jobs.example.org"})
    [made] = [each for each in first.headers.get_list("set-cookie") if each.startswith(f"{COOKIE}=")]
    assert "; Secure" in made
    monkeypatch.setattr("tidewheel.control.console.sign_in.RENEW_SECONDS", -1)
    page = door.get("/", headers={"Cookie": made.partition(";")[0]})
    [renewed] = [each for each in page.headers.get_list("set-cookie") if each.startswith(f"{COOKIE}=")]
    assert "; Secure" in renewed


@pytest.mark.parametrize("kind", ["unknown", "mistyped", "revoked"])
def test_wrong_key_is_refused_and_the_page_keeps_all_but_the_key(door: ApiClient, kind: str) -> None:
    key = new_key().text if kind == "unknown" else key_of(door.database)
    if kind == "revoked":
        revoke(door.database, key)
    typed = key[:-1] if kind == "mistyped" else key
    answer = sign_in(door, typed, name="anna <b>", next="/runs")
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert ("typing error" if kind == "mistyped" else "No such key, or it was revoked.") in answer.text
    assert 'value="anna &lt;b&gt;"' in answer.text
    assert 'name="next" value="/runs"' in answer.text
    assert typed not in answer.text
    assert door.get("/").status_code == HTTPStatus.SEE_OTHER


def test_key_that_may_not_read_opens_no_page(door: ApiClient) -> None:
    answer = sign_in(door, key_of(door.database, "write"))
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "lacks the scope read" in answer.text


def test_revoked_key_ends_its_sign_in_within_a_second(door: ApiClient) -> None:
    key = key_of(door.database)
    signed_in(door, key)
    assert door.get("/").status_code == HTTPStatus.OK
    revoke(door.database, key)
    begun = monotonic_seconds()
    until(lambda: door.get("/").status_code == HTTPStatus.SEE_OTHER, "the sign-in to end")
    assert key_check._FRESH_SECONDS == 1  # pyright: ignore[reportPrivateUsage]
    assert monotonic_seconds() - begun < 10, "a busy machine included"
    assert COOKIE not in door.cookies or not door.cookies[COOKIE]
    assert "revoked or has expired" in door.get("/sign-in?ended=1").text


@pytest.mark.parametrize(("left", "warns"), [("11 minutes", False), ("9 minutes", True)])
def test_page_warns_before_the_key_of_its_sign_in_expires(door: ApiClient, left: str, *, warns: bool) -> None:
    key = key_of(door.database)
    expire = "UPDATE api_keys SET expires_at = tidewheel_now() + %(left)s::interval RETURNING expires_at"
    at = door.database.value(expire, {"left": left})
    signed_in(door, key)
    page = door.get("/jobs?prefix=a").text
    assert ("your sign-in ends with it" in page) is warns
    assert ('href="/sign-in?next=%2Fjobs%3Fprefix%3Da"' in page) is warns
    wakes = format_timestamp(at - timedelta(minutes=10))
    assert (f'<time hidden datetime="{wakes}">' in page) is not warns, "the script reads the page again then"
    back = sign_in(door, key_of(door.database), "/sign-in?next=%2Fjobs%3Fprefix%3Da", next="/jobs?prefix=a")
    assert back.headers.get("location") == "/jobs?prefix=a"
    assert "your sign-in ends with it" not in door.get("/jobs").text


def test_sign_out_ends_the_sign_in_of_this_browser(door: ApiClient) -> None:
    signed_in(door, key_of(door.database))
    answer = door.post("/sign-out", data=form_of(door.get("/")))
    assert (answer.status_code, answer.headers["location"]) == (HTTPStatus.SEE_OTHER, "/sign-in")
    assert door.get("/").status_code == HTTPStatus.SEE_OTHER


def test_forged_and_old_cookies_open_nothing(door: ApiClient) -> None:
    key = key_of(door.database)
    key_id, now = key.split("_")[1], 1_900_000_000
    signer = Signer(door.database.installation.task_token_key)
    forged = Signer(b"another").write(SignIn(key_id, now, None))
    assert signer.read(forged, now) is None
    own = signer.write(SignIn(key_id, now, "anna"))
    assert signer.read(own, now + 60) == SignIn(key_id, now, "anna")
    assert signer.read(own, now + LIFE_SECONDS + 61) is None
    assert signer.read(own + "0", now) is None
    assert signer.read(own[1:], now) is None
    for text in (forged, "", ".", "x" * 5000):
        door.cookies.set(COOKIE, text)
        assert door.get("/").status_code == HTTPStatus.SEE_OTHER


def test_token_of_executors_and_bearer_keys_open_no_page(door: ApiClient) -> None:
    for shown in (TOKEN, key_of(door.database, "admin")):
        answer = door.get("/jobs", headers={"Authorization": f"Bearer {shown}"})
        assert answer.status_code == HTTPStatus.SEE_OTHER


def test_sign_in_opens_no_call_of_rest(door: ApiClient) -> None:
    signed_in(door, key_of(door.database, "admin"))
    assert door.get("/api/v1/jobs").status_code == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out", "/theme"])
def test_form_of_another_site_or_without_its_token_is_refused(door: ApiClient, path: str) -> None:
    signed_in(door, key_of(door.database))
    form = form_of(door.get("/")) | {"key": key_of(door.database), "theme": "dark"}
    others = (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    )
    for headers in others:
        assert door.post(path, data=form, headers=headers).status_code == HTTPStatus.FORBIDDEN, headers
    for token in ("", "0" * 64, form["token"][:-1]):
        answer = door.post(path, data=form | {"token": token})
        assert answer.status_code == HTTPStatus.FORBIDDEN
        assert "<h1>Forbidden</h1>" in answer.text
    assert door.post(path, json=form).status_code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    assert door.get("/").status_code == HTTPStatus.OK


def test_token_of_another_browser_is_refused(door: ApiClient, database: Database) -> None:
    signed_in(door, key_of(database))
    stolen = form_of(door.get("/"))
    with console(database) as other:
        signed_in(other, key_of(database))
        assert other.post("/theme", data=stolen | {"theme": "dark"}).status_code == HTTPStatus.FORBIDDEN


def test_form_leads_to_no_other_site(door: ApiClient) -> None:
    signed_in(door, key_of(door.database))
    for away in (
        "//evil.example/",
        "https://evil.example/",
        "/\\evil.example",
        "/sign-out",
        "/jobs/a\r\nSet-Cookie: a=b",
    ):
        answer = door.post("/theme", data=form_of(door.get("/")) | {"theme": "dark", "next": away})
        assert answer.headers["location"] == "/", away


def test_theme_is_kept_in_a_cookie_and_written_by_the_server(door: ApiClient) -> None:
    signed_in(door, key_of(door.database))
    assert "data-theme" not in door.get("/").text
    door.post("/theme", data=form_of(door.get("/")) | {"theme": "dark"})
    assert 'data-theme="dark"' in door.get("/jobs").text
    door.cookies.set("tidewheel-theme", '"><script>')
    assert "data-theme" not in door.get("/jobs").text


def test_api_without_a_token_opens_pages_without_a_sign_in(database: Database) -> None:
    with answering(database) as client:
        client.headers.update(HTML)
        page = client.get("/")
        assert page.status_code == HTTPStatus.OK
        assert "development, no keys" in page.text
        assert client.get("/sign-in").headers["location"] == "/"
        assert client.get("/", headers={"Host": "evil.example"}).status_code == HTTPStatus.MISDIRECTED_REQUEST


def revoke(database: Database, key: str) -> None:
    with Client(database.url) as client:
        client.api_keys.revoke(key.split("_")[1])

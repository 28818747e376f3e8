"""Sign-in by an API key: what opens pages, what ends a sign-in, and forms of other sites."""

from collections.abc import Iterator
from datetime import timedelta
from http import HTTPStatus

import pytest

from tests.control.api.answering import ApiClient, answering
from tests.control.console.pages import HTML, TOKEN, assert_refused, console, form_of, key_of, sign_in, signed_in
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.api_keys import new_key
from tidewheel.clock import monotonic_seconds
from tidewheel.control.api import key_check
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.api_keys.sign_ins import COOKIE, LIFE, SignIn, add_sign_in


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
    assert "tidewheel admin api-key create NAME --scope read" in page
    assert 'class="rail"' not in page
    with console(database, console_name="Berlin <b>") as named:
        assert "Berlin &lt;b&gt;</bdi></span></p>" in named.get("/sign-in").text


def test_cookie_is_kept_from_scripts_and_other_sites_and_holds_no_secret(door: ApiClient) -> None:
    key = key_of(door.database)
    answer = sign_in(door, key)
    [cookie] = [each for each in answer.headers.get_list("set-cookie") if each.startswith(COOKIE)]
    assert {"HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={LIFE.total_seconds():.0f}"} <= set(cookie.split("; "))
    assert key not in cookie
    assert key.split("_")[2] not in cookie
    assert key not in door.get("/").text


def test_key_typed_into_a_page_that_came_by_plain_http_from_afar_is_refused(door: ApiClient) -> None:
    form = form_of(door.get("/sign-in")) | {"key": key_of(door.database)}
    answer = door.post("/sign-in", data=form, headers={"Origin": "http://jobs.example.org", "Host": "jobs.example.org"})
    assert_refused(answer, "Open it by HTTPS")
    assert COOKIE not in answer.headers.get("set-cookie", "")


def test_cookies_by_https_have_names_that_no_other_host_of_the_domain_can_set(door: ApiClient) -> None:
    proxied = {"Origin": "https://jobs.example.org", "Sec-Fetch-Site": "same-origin"}
    for base, prefix in (("", "__Host-"), ("/ops", "__Secure-")):
        with console(door.database, **({"api_base_path": base} if base else {})) as behind:
            form = form_of(behind.get(f"{base}/sign-in")) | {"key": key_of(door.database)}
            answer = behind.post(f"{base}/sign-in", data=form, headers=proxied)
            [made] = [each for each in answer.headers.get_list("set-cookie") if COOKIE in each]
            assert made.startswith(f"{prefix}{COOKIE}=")
            assert {"Secure", f"Path={base or '/'}"} <= set(made.split("; "))
            pair = made.partition(";")[0]
            assert behind.get(f"{base}/", headers={"Cookie": pair}).status_code == HTTPStatus.OK
            assert behind.get(f"{base}/", headers={"Cookie": f"{pair}x"}).status_code == HTTPStatus.SEE_OTHER


def test_wrong_key_is_refused_and_the_page_keeps_all_but_the_key(door: ApiClient) -> None:
    revoked = key_of(door.database)
    revoke(door.database, revoked)
    none = "No such key, or it was revoked."
    for typed, words in (
        (new_key().text, none),
        (revoked, none),
        (key_of(door.database)[:-1], "typing error"),
        (key_of(door.database, "write"), "lacks the scope read"),
    ):
        answer = sign_in(door, typed, name="anna <b>", next="/runs")
        assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, words
        for shown in (words, 'value="anna &lt;b&gt;"', 'name="next" value="/runs"'):
            assert shown in answer.text, (words, shown)
        assert typed not in answer.text, words
        assert door.get("/").status_code == HTTPStatus.SEE_OTHER, words


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


def test_sign_out_ends_the_sign_in_for_whoever_has_copied_its_cookie(door: ApiClient) -> None:
    signed_in(door, key_of(door.database))
    copied, form = cookies_of(door), form_of(door.get("/"))
    with console(door.database) as other_process:
        assert other_process.get("/", headers=copied).status_code == HTTPStatus.OK
        assert door.post("/sign-out", data=form).status_code == HTTPStatus.SEE_OTHER
        assert door.get("/", headers=copied).status_code == HTTPStatus.SEE_OTHER
        until(lambda: other_process.get("/", headers=copied).status_code == HTTPStatus.SEE_OTHER, "the sign-in to end")


@pytest.mark.landing
def test_sign_in_ends_after_12_hours_without_a_page_and_after_7_days_in_any_case(door: ApiClient) -> None:
    """Nothing lengthens a sign-in: issue 39, N10."""
    database = door.database
    signed_in(door, key_of(database))
    kept = cookies_of(door)

    def opens(used: str, made: str) -> bool:
        database.execute("UPDATE sign_ins SET used_at = tidewheel_now() - %s::interval", [used])
        database.execute("UPDATE sign_ins SET made_at = tidewheel_now() - %s::interval", [made])
        with console(database) as fresh:  # its process has read nothing yet
            return fresh.get("/", headers=kept).status_code == HTTPStatus.OK

    assert opens("11 hours 59 minutes", "6 days")
    used = "SELECT tidewheel_now() - used_at < interval '1 minute' FROM sign_ins"
    assert database.value(used) is True, "a page counts as a use"
    assert not opens("12 hours 1 minute", "1 day")
    assert not opens("0", "7 days 1 minute")


def test_sign_in_of_a_key_opens_nothing_of_another_key_with_its_id(door: ApiClient) -> None:
    """A cookie is bound to the secret that was shown: issue 39, N1."""
    signed_in(door, key_of(door.database))
    assert door.get("/").status_code == HTTPStatus.OK
    door.database.execute("UPDATE api_keys SET secret_hash = sha256('another')")
    until(lambda: door.get("/").status_code == HTTPStatus.SEE_OTHER, "the sign-in to end")


def test_forged_cookies_open_nothing(door: ApiClient) -> None:
    key = key_of(door.database, "admin")
    key_id = key.split("_")[1]
    digest = door.database.value("SELECT encode(secret_hash, 'hex') FROM api_keys")
    guesses = (SignIn(key_id, "guessed"), SignIn(key_id, str(digest)))
    for text in (*(guess.text for guess in guesses), key_id, f"{key_id}.", ".", "x" * 5000):
        door.cookies.set(COOKIE, text)
        assert door.get("/").status_code == HTTPStatus.SEE_OTHER


def test_sign_ins_of_a_key_are_bounded_and_old_ones_deleted(door: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.nouns.api_keys.sign_ins._MOST_SIGN_INS", 3)
    key = key_of(door.database)
    for _ in range(5):
        door.cookies.clear()
        signed_in(door, key)
    assert door.database.count("sign_ins") == 3
    assert door.get("/").status_code == HTTPStatus.OK
    door.database.execute("UPDATE sign_ins SET made_at = made_at - interval '8 days'")
    door.cookies.clear()
    signed_in(door, key_of(door.database))
    assert door.database.count("sign_ins") == 1


def test_link_opens_the_console_once(door: ApiClient) -> None:
    key_of(door.database, "admin")
    key_id = str(door.database.value("SELECT key_id FROM api_keys"))

    def link() -> str:
        made = door.database.within(add_sign_in, key_id, None, is_link=True)
        assert made is not None
        return made.text

    text = link()
    door.cookies.set(COOKIE, text)
    assert door.get("/").status_code == HTTPStatus.SEE_OTHER, "a link is no cookie"
    door.cookies.clear()
    opened = door.get(f"/sign-in?link={text}")
    assert (opened.status_code, opened.headers["location"]) == (HTTPStatus.SEE_OTHER, "/")
    assert door.get("/").status_code == HTTPStatus.OK
    with console(door.database) as other:
        assert "was opened before" in other.get(f"/sign-in?link={text}").text
        late = link()
        door.database.execute("UPDATE sign_ins SET made_at = made_at - interval '61 minutes'")
        assert "an hour old" in other.get(f"/sign-in?link={late}").text
        assert other.get("/").status_code == HTTPStatus.SEE_OTHER


def test_sign_in_opens_no_call_of_rest_and_tokens_open_no_page(door: ApiClient) -> None:
    for shown in (TOKEN, key_of(door.database, "admin")):
        answer = door.get("/jobs", headers={"Authorization": f"Bearer {shown}"})
        assert answer.status_code == HTTPStatus.SEE_OTHER
    signed_in(door, key_of(door.database, "admin"))
    assert door.get("/api/v1/jobs").status_code == HTTPStatus.UNAUTHORIZED


def test_form_of_another_site_or_without_its_token_is_refused(door: ApiClient) -> None:
    signed_in(door, key_of(door.database))
    form = form_of(door.get("/")) | {"key": key_of(door.database), "theme": "dark"}
    others = (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    )
    for path in ("/sign-in", "/sign-out", "/theme"):
        for headers in others:
            assert door.post(path, data=form, headers=headers).status_code == HTTPStatus.FORBIDDEN, (path, headers)
        for token in ("", "0" * 64, form["token"][:-1]):
            answer = door.post(path, data=form | {"token": token})
            assert answer.status_code == HTTPStatus.FORBIDDEN, path
            assert "<h1>Forbidden</h1>" in answer.text, path
        assert door.post(path, json=form).status_code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE, path
        assert door.get("/").status_code == HTTPStatus.OK, path
    with console(door.database) as other:
        signed_in(other, key_of(door.database))
        assert other.post("/theme", data=form).status_code == HTTPStatus.FORBIDDEN, "the token of another browser"


def test_theme_is_kept_in_a_cookie_and_its_form_leads_to_no_other_site(door: ApiClient) -> None:
    signed_in(door, key_of(door.database))
    assert "data-theme" not in door.get("/").text
    for away in (
        "//evil.example/",
        "https://evil.example/",
        "/\\evil.example",
        "/sign-out",
        "/jobs/a\r\nSet-Cookie: a=b",
    ):
        answer = door.post("/theme", data=form_of(door.get("/")) | {"theme": "dark", "next": away})
        assert answer.headers["location"] == "/", away
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


def cookies_of(client: ApiClient) -> dict[str, str]:
    """Return the header with which another browser would show the cookies of this one."""
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in client.cookies.items())}


def revoke(database: Database, key: str) -> None:
    database.client.api_keys.revoke(key.split("_")[1])

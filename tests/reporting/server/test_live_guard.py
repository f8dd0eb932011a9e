from http.cookies import SimpleCookie

import pytest
from helpers.reporting.server import Answer, ask, run
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tune_speed.reporting.server.run import Guard

TOKEN = "correct-horse"
SECRET = "what is to be guarded"


def guarded(*, token: str | None = None, is_loopback: bool = True) -> Guard:
    async def answer(request: object) -> PlainTextResponse:
        return PlainTextResponse(SECRET)

    app = Starlette(routes=[Route("/{path:path}", answer)])
    return Guard(app, token=token, is_loopback=is_loopback, port=8420)


def get(app: Guard, target: str = "/", **headers: str) -> Answer:
    return run(ask(app, target, headers=headers))


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9", "127.0.0.1:8420", "127.0.0.2", "[::1]:8420", "[::1]"]
)
def test_names_of_this_machine_pass(host: str) -> None:
    assert get(guarded(), host=host).text == SECRET


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.5", ""),
        *("[::1", "[::1].evil.example", "[::1]evil.example", "[::1]:80.evil.example", "::1"),
        *("[127.0.0.1]", "evil.example@localhost", "localhost/evil.example", "localhost?x", "[]"),
        *(
            "localhost#x",
            "localhost:evil",
            "localhost:",
            "localhost\t",
            "[::1%evil]",
            "localhost,x",
        ),
    ],
)
def test_a_name_that_somebody_mapped_to_loopback_is_refused(host: str) -> None:
    answer = get(guarded(), host=host)
    assert (answer.code, SECRET in answer.text) == (403, False)
    assert "localhost" in answer.text


@pytest.mark.parametrize("target", ["/", "/studies/a/events", "/studies/a/parts/running"])
def test_without_the_token_nothing_is_told(target: str) -> None:
    app = guarded(token=TOKEN, is_loopback=False)
    for headers in ({}, {"cookie": "tune_speed_8420=wrong"}, {"authorization": "Bearer wrong"}):
        answer = get(app, target, host="node17", **headers)
        assert (answer.code, SECRET in answer.text) == (401, False)
        assert answer.headers["www-authenticate"] == "Bearer"
    assert get(app, f"{target}?token=wrong", host="node17").code == 401
    assert get(app, f"{target}?token=", host="node17").code == 401


def test_the_printed_address_gives_a_cookie_and_leaves_no_token_in_the_history() -> None:
    app = guarded(token=TOKEN, is_loopback=False)
    welcome = get(app, f"/studies/a?x=1&token={TOKEN}", host="node17")
    assert (welcome.code, welcome.headers["location"]) == (303, "/studies/a?x=1")
    cookie = SimpleCookie(welcome.headers["set-cookie"])["tune_speed_8420"]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "lax", "/")
    sent = f"other=1; tune_speed_8420={cookie.value}"
    assert get(app, "/studies/a", host="node17", cookie=sent).text == SECRET


def test_a_program_sends_the_token_in_a_header() -> None:
    app = guarded(token=TOKEN, is_loopback=False)
    assert get(app, host="node17", authorization=f"Bearer {TOKEN}").text == SECRET


def test_the_way_on_stays_on_this_server() -> None:
    app = guarded(token=TOKEN, is_loopback=False)
    location = get(app, f"//evil.example/?token={TOKEN}", host="node17").headers["location"]
    assert location.startswith("/") and not location.startswith("//")


def test_loopback_with_a_token_needs_both() -> None:
    app = guarded(token=TOKEN)
    assert get(app).code == 401
    assert get(app, host="evil.example", authorization=f"Bearer {TOKEN}").code == 403
    assert get(app, authorization=f"Bearer {TOKEN}").text == SECRET


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_no_answer_is_stored_framed_or_shared(host: str) -> None:
    headers = get(guarded(), host=host).headers
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers

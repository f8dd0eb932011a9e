"""Passwords and tokens are hidden, in whatever form, and hiding them breaks nothing else."""

import json
import time
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tune_speed.core.redact import redact
from tune_speed.tracking.store.uri import strip_secrets

SECRET = "s3cr3tXYZ"
"""Stands at the beginning and at the end of every secret here."""
signs = st.text(st.sampled_from("abzAZ09-._~!$()*+,=:@/?#[]%^|'`"), max_size=12)
secrets = signs.map(lambda text: f"{SECRET}{text}{SECRET}")
words = st.text(st.characters(codec="utf-8", exclude_characters='"\\'), max_size=30)
FORMS = (
    "https://user:{}@host/path",
    "https://{}@host/path",
    "https://{}:@host/path",
    "https://{}:x-oauth-basic@host/path",
    "postgresql+psycopg2://user:{}@host:5432/db?sslmode=require",
    "s3://AKIAEXAMPLE:{}@bucket/folder",
    "redis://:{}@host/0",
)
PARTS = (
    "https://host/p?token={}&a=1",
    "https://host/p?a=1&X-Amz-Signature={}",
    "https://host/p?a=1&X-Amz-Credential={}&b=2",
    "https://account.blob.core.windows.net/c?sv=1&sig={}",
    "https://host/#access_token={}&b=1",
    "Authorization: Bearer {}",
    "authorization: Basic {}",
    "{{'Authorization': 'Bearer {}'}}",
    "AWS_SECRET_ACCESS_KEY={}",
    "MLFLOW_TRACKING_PASSWORD={} tune-speed search x",
    "host=db user=me password={} dbname=x",
    '{{"password": "{}", "user": "me"}}',
    "{{'aws_session_token': '{}'}}",
)


@settings(max_examples=150)
@given(before=words, secret=secrets, after=words, form=st.sampled_from(FORMS))
@example(before="", secret=f"{SECRET}://{SECRET}", after="", form=FORMS[0])
def test_no_login_of_an_address_gets_through(
    before: str, secret: str, after: str, form: str
) -> None:
    # A lone token must be written with escapes: with a colon in it, it is a user and a password.
    plain = [secret] if "user:{}" in form or ":{}@b" in form else []
    for written in (*plain, quote(secret, safe="")):
        shown = redact(f"{before} {form.format(written)} {after}")
        assert SECRET not in shown
        assert "***" in shown
        assert redact(shown) == shown


@settings(max_examples=150)
@given(before=words, secret=secrets, form=st.sampled_from(PARTS))
def test_no_token_of_a_parameter_header_or_setting_gets_through(
    before: str, secret: str, form: str
) -> None:
    shown = redact(f"{before} {form.format(quote(secret, safe='/+=:'))}")
    assert SECRET not in shown
    assert redact(shown) == shown


@settings(max_examples=200)
@given(
    texts=st.lists(st.one_of(words, st.text(max_size=20)), max_size=4),
    secret=secrets,
    form=st.sampled_from((*FORMS, *PARTS)),
    ends=st.sampled_from(['"', "'", "\\", '\\"', "\n", "", '"}', "\\\\"]),
)
def test_a_json_text_stays_one(texts: list[str], secret: str, form: str, ends: str) -> None:
    """Records are kept as JSON: a traceback that quotes an address must not break one."""
    hidden = f'"{form.format(quote(secret))}{ends}'
    tree = {"a": texts, "traceback": hidden, hidden: 1, "number": 1.5}
    for text in (json.dumps(tree), json.dumps(tree, ensure_ascii=False, separators=(",", ":"))):
        read = json.loads(strip_secrets(text))
        assert read["number"] == 1.5
        assert len(read) == 4


@pytest.mark.parametrize(
    "text",
    [
        "search.storage: must be the path of a journal file",
        "the token: is explained in README.md",
        "optimizer.sgd.lr=0.1 key=abc12345 num_tokens=16",
        "http://127.0.0.1:5000/#/experiments/1/runs/0123456789abcdef",
        "ssh://git@host/repository and https://medium.com/@somebody/page",
        "sqlite:////home/me/mlflow.db",
        "recipe.yaml:3: recipe.epochs: must be greater than 0, but got -1.",
        "sent as t0003@certified",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "part",
    [
        *("://a:", "?key", "key", "authorization", "bearer ", "password", "http", "@", "://"),
        *("\\a", "access_", "#", "?" + "a" * 60 + "=", "password=\\", "token token="),
    ],
)
def test_a_hostile_text_takes_time_in_proportion_to_its_length(part: str) -> None:
    """Compared with itself: eight times the text may take 64 times as long only if it squares."""
    short, long = (f"?://{part * (size // len(part))}" for size in (5_000, 40_000))
    took_s = [_least_s(text) for text in (short, long)]
    assert took_s[1] < 30 * took_s[0] + 0.1, took_s


def _least_s(text: str) -> float:
    def once() -> float:
        started = time.process_time()
        redact(text)
        return time.process_time() - started

    return min(once() for _ in range(3))

"""Each kind of secret that is hidden, and look-alikes that stay."""

import pytest

from tune_speed.core.errors import Problem
from tune_speed.core.redact import redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:s3cr@t/x@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("mysql+pymysql://:s3cret@host/db", "mysql+pymysql://:***@host/db"),
        ("https://t0ken@host/x", "https://***@host/x"),
        ("https://t0ken:@host/x", "https://***@host/x"),
        ("https://t0ken:x-oauth-basic@host/x", "https://***@host/x"),
        ("http://host/x?token=s3cret&a=1", "http://host/x?token=***&a=1"),
        ("sqlite:////tmp/a.db", "sqlite:////tmp/a.db"),
        ("http://host:5000/page", "http://host:5000/page"),
    ],
)
def test_passwords_and_tokens_are_hidden_and_the_rest_is_not(text: str, shown: str) -> None:
    assert redact(f'before "{text}" after') == f'before "{shown}" after'


def test_problem_shows_no_password() -> None:
    url = "redis://me:s3cret@host/0"
    problem = Problem(path="search.storage", must="must", given=url, file=f"--set x={url}")
    assert "s3cret" not in str(problem)


@pytest.mark.parametrize("name", ["password", "passwd", "pwd", "secret", "api_key", "signature"])
@pytest.mark.parametrize("mark", ["?", "&", "#", ";"])
def test_parameters_of_addresses_are_hidden_by_their_names(name: str, mark: str) -> None:
    assert redact(f"h/x{mark}my-{name}_2=ab%c&b=2") == f"h/x{mark}my-{name}_2=***&b=2"
    assert redact(f"H{mark}{name.upper()}=AB") == f"H{mark}{name.upper()}=***"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Basic abcdef", "Authorization: Basic ***"),
        ("authorization=abc", "authorization=***"),
        ('"Authorization": "Bearer abc.def"', '"Authorization": "Bearer ***"'),
        ("authorization: ab", "authorization: ab"),
        ("bearer 0123456789abcdef", "bearer ***"),
        ("Bearer 0123456789abcde", "Bearer 0123456789abcde"),
        ("password=abc d", "password=*** d"),
        ('{"password": "a\\"b", "x": 1}', '{"password": "***\\"b", "x": 1}'),
        ("{'aws_secret_access_key': 'abc'}", "{'aws_secret_access_key': '***'}"),
        ("session_token=abc&x", "session_token=***&x"),
        ("passphrase=abc", "passphrase=***"),
        ("the password is long", "the password is long"),
        ("ftp://lone@host/x", "ftp://lone@host/x"),
        ("https://host/a@b", "https://host/a@b"),
        ("https://me:@host", "https://***@host"),
        ("ftp://me:@host", "ftp://me:***@host"),
    ],
)
def test_secrets_are_hidden_where_they_are_named(text: str, shown: str) -> None:
    assert redact(text) == shown

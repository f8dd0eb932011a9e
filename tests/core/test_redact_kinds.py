"""Each kind of secret that is hidden, and look-alikes that stay."""

import pytest

from tune_speed.core.redact import redact


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

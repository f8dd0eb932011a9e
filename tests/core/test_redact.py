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

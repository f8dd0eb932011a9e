"""Passwords and tokens in addresses, hidden before anything is shown or stored."""

import re

_PASSWORD = re.compile(r"(://[^\s:/@\"']*):[^\s\"']*@")
_QUERY_SECRET = re.compile(r"([?&][\w.-]*(?:passw|pwd|secret|token|key)[\w.-]*=)[^&\s\"']+", re.I)


def redact(text: str) -> str:
    """Returns `text` with passwords and tokens in URIs as `***`."""
    return _QUERY_SECRET.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))

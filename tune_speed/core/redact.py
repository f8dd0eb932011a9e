"""Passwords and tokens, hidden before anything is shown or stored; rather too much than too little.

A JSON text stays one. All patterns take time in proportion to the text.
"""

import re

# Of a value; a backslash goes with what it escapes, as in JSON.
_SIGN = r"(?:[^\s\"'&\\]|\\[^\s\"'])"
_ADDRESS = re.compile(r"(https?)?://((?:[^\s\"\\]|\\[^\s\"])+)", re.I)
# Repeats before a word are bounded: without a bound each start would scan all that follows, which
# takes time in proportion to the square of the text.
_PARAMETER = re.compile(
    rf"([?&#;][\w.-]{{0,60}}?(?:passw|pwd|secret|token|key|signature|credential|auth|sig)"
    rf"[\w.-]{{0,30}}=){_SIGN}+",
    re.I,
)
_HEADER = re.compile(
    rf"(\bauthorization[\"']?\s{{0,3}}[:=]\s{{0,3}}[\"']?(?:[a-z]{{1,20}} )?){_SIGN}{{3,}}", re.I
)
_BEARER = re.compile(rf"(\bbearer\s){_SIGN}{{16,}}", re.I)
_NAME = (
    r"(?:passwo?r?d|passwd|passphrase|pwd|secret|(?:secret|api|access|account)_?(?:access_?)?key"
    r"|(?:access|auth|session|refresh|security|tracking)_?token)"
)
_NAMED = re.compile(rf"({_NAME}(?:=|\\?[\"']\s{{0,2}}[:=]\s{{0,2}}\\?[\"'])){_SIGN}+", re.I)


def redact(text: str) -> str:
    text = _ADDRESS.sub(_without_login, text)
    for pattern in (_PARAMETER, _HEADER, _BEARER, _NAMED):
        text = pattern.sub(r"\1***", text)
    return text


def _without_login(address: re.Match[str]) -> str:
    scheme, rest = address[1] or "", address[2]
    login, at, place = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if not at or (not colon and not scheme) or (not colon and "/" in login):
        return address[0]
    is_token = not colon or (scheme and password in ("", "x-oauth-basic"))
    return f"{scheme}://***@{place}" if is_token else f"{scheme}://{user}:***@{place}"

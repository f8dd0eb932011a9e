import socket

import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.reporting.server.run import TOKEN_VARIABLE, address_of, is_loopback, listen, serve


def test_port_zero_is_any_that_is_free_and_the_address_has_it() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert port > 0 and is_loopback(listener)
        assert address_of(listener, token=None) == f"http://127.0.0.1:{port}/"
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_a_port_in_use_is_told_with_what_to_try() -> None:
    with listen("localhost", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port .* {port} on localhost.*or 0 for any"):
            listen("localhost", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "", "a" * 70])
def test_a_host_that_is_not_of_this_machine_is_told(host: str) -> None:
    with pytest.raises(ConfigError, match="--host must be a name or an address of this machine"):
        listen(host, 0)


def test_all_networks_are_no_loopback_and_the_address_has_the_token() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert not is_loopback(listener)
        address = address_of(listener, token="a b&c")
        assert address.startswith(f"http://{socket.gethostname()}:")
        assert address.endswith("/?token=a%20b%26c")


@pytest.mark.parametrize("token", ["ключ", "a\nb"])
def test_token_that_no_header_holds_is_refused(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with pytest.raises(ConfigError, match="ASCII"):
        serve("sqlite:///none", host="::1", port=0, recipe_yaml=lambda *_: "", announce=print)

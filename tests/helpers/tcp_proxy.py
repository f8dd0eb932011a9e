"""A proxy that cuts connections: the server took the request, and its answer never arrives."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

CHUNK = 1 << 16


class TcpProxy:
    """Passes bytes on between clients and a server on loopback, until it is told to cut."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.num_cut = 0
        """Answers that were kept back so far."""
        self.cut_if: Callable[[bytes, bytes], bool] = lambda asked, answered: False
        """Whether to cut, by what was asked since the last answer, and what is answered now."""
        self._sockets: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._sockets):
            _end(each)
        self._thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port), timeout=30)
        except OSError:
            _end(client)
            return
        server.settimeout(None)
        ends = {client, server}
        self._sockets |= ends
        asked = [b""]
        back = threading.Thread(target=self._answer, args=(server, client, asked), daemon=True)
        back.start()
        with suppress(OSError):
            while data := client.recv(CHUNK):
                asked[0] += data
                server.sendall(data)
        for each in ends:
            _end(each)
        self._sockets -= ends

    def _answer(self, server: socket.socket, client: socket.socket, asked: list[bytes]) -> None:
        with suppress(OSError):
            while data := server.recv(CHUNK):
                if self.cut_if(asked[0], data):
                    self.num_cut += 1
                    break
                asked[0] = b""
                client.sendall(data)
        for each in (client, server):
            _end(each)


@contextmanager
def tcp_proxy(server_port: int) -> Iterator[TcpProxy]:
    """Runs a proxy in front of a server's port."""
    proxy = TcpProxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()

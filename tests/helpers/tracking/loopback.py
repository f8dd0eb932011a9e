"""What a server on loopback needs: a process, certificates, a proxy that cuts connections."""

import os
import pwd
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

START_S, STOP_S = 300.0, 30.0


class Server:
    """A server of one main process and its children, in a session of their own."""

    def __init__(
        self,
        command: list[str],
        *,
        folder: Path,
        port: int,
        is_up: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        user: pwd.struct_passwd | None = None,
    ) -> None:
        self.port, self.log = port, folder / "log"
        self._command, self._folder, self._is_up, self._user = command, folder, is_up, user
        own = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "PG"))}
        self._environment = {**own, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def processes(self) -> list[psutil.Process]:
        """All that runs of it."""
        if self._process is None:
            return []
        try:
            main = psutil.Process(self._process.pid)
            return [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def start(self) -> None:
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_user(self._user),
            )
        deadline = time.monotonic() + START_S
        while not self._is_up():
            is_dead = self._process.poll() is not None
            if is_dead or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"no server: {self.log.read_text()[-3000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Ends all of it at once, as `kill -9` or a power cut does."""
        processes = self.processes
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process is not None:
            self._process.wait(STOP_S)
            self._process = None
        _, alive = psutil.wait_procs(processes, timeout=STOP_S)
        assert not alive, alive

    def restart(self) -> None:
        """Starts it again where it was, killed before if it still runs."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Takes its processor away: it accepts connections and answers nothing."""
        for process in self.processes:
            process.suspend()

    def thaw(self) -> None:
        for process in self.processes:
            process.resume()

    def stop(self) -> None:
        """Ends it in peace, or by force if it does not listen."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self.kill()


def free_port() -> int:
    """Returns a port of loopback that nobody listens on now."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Returns what makes a process run as `user`: PostgreSQL refuses to run as root."""
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


# --- Certificates


def write_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Writes the authority's certificate, the server's and its key; returns their paths."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _builder("authority of this test", "authority of this test", authority_key)
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    authority = authority.add_extension(_usage(signs=True), critical=True)
    server = _builder("server", "authority of this test", key)
    own_address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    server = server.add_extension(own_address, critical=False)
    files = {
        "authority.pem": _pem(authority.sign(authority_key, hashes.SHA256())),
        "server.pem": _pem(server.sign(authority_key, hashes.SHA256())),
        "server.key": key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    authority_path, server_path, key_path = (folder / name for name in files)
    return authority_path, server_path, key_path


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    unused = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment")
    unused += ("key_agreement", "encipher_only", "decipher_only")
    return x509.KeyUsage(**dict.fromkeys(unused, False), key_cert_sign=signs, crl_sign=signs)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


# --- A proxy that cuts connections: the server took the request, and its answer never arrives

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
    proxy = TcpProxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()

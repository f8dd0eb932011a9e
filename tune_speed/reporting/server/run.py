"""A server for the live page, until Ctrl-C."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from tune_speed.reporting.page.study_page import RecipeYaml
from tune_speed.reporting.server.address import address_of, is_loopback, listen
from tune_speed.reporting.server.app import LivePages
from tune_speed.reporting.server.guard import Guard
from tune_speed.tracking.reader.studies import list_studies
from tune_speed.tracking.store.store import open_store

TOKEN_VARIABLE = "TUNE_SPEED_TOKEN"
# Longest wait for answers that are being sent when it ends.
GRACE_S = 1


def serve(
    uri: str,
    *,
    host: str,
    port: int,
    recipe_yaml: RecipeYaml,
    announce: Callable[[str], None],
) -> None:
    """Serves the live pages of a store until Ctrl-C; `announce` gets the address to open.

    Where other machines reach it, viewers need a token: $TUNE_SPEED_TOKEN, or a new one. On
    loopback they need one if that variable is set.

    Raises: ConfigError if the host or the port is not to be had; ServiceError or StorageError if
        the store does not answer or does not exist; KeyboardInterrupt on Ctrl-C.
    """
    with listen(host, port) as listener:
        list_studies(uri)
        is_private = is_loopback(listener)
        token = os.environ.get(TOKEN_VARIABLE) or (
            None if is_private else secrets.token_urlsafe(24)
        )
        ending, own_port = asyncio.Event(), listener.getsockname()[1]
        pages = LivePages(uri, recipe_yaml=recipe_yaml, ending=ending).app()
        app = Guard(pages, token=token, is_loopback=is_private, port=own_port)
        # Importing MLflow takes two seconds, which the first viewer would wait.
        open_store(uri, create=False)
        announce(address_of(listener, token=token))
        Server(app, ending).run(sockets=[listener])


class Server(uvicorn.Server):
    """Ends at once, and the streams that are open with it."""

    def __init__(self, app: ASGIApp, ending: asyncio.Event) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            loop="asyncio",
            ws="none",
            lifespan="off",
            # A request is no news; what breaks has a traceback.
            access_log=False,
            log_level="error",
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends streams, which would be waited for otherwise."""
        self._ending.set()
        await super().shutdown(sockets)

"""Bounded waiting for calls that know no time limit of their own."""

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

Result = TypeVar("Result")


def within(timeout_s: float, function: Callable[[], Result]) -> Result:
    """Returns `function()`. Raises: TimeoutError after `timeout_s`; its thread continues."""
    return begun(function)(timeout_s)


def begun(function: Callable[[], Result]) -> Callable[..., Result]:
    """Begins a call; returns what waits for its end, so many seconds if it is given a number."""
    # A thread, as nothing can stop a name look-up or a connection attempt from outside.
    results: list[Result] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    run = copy_context().run  # Messages name options as the caller writes them.
    thread = threading.Thread(target=run, args=(call,), name="tune_speed-bounded-call", daemon=True)
    thread.start()

    def wait(timeout_s: float | None = None) -> Result:
        thread.join(timeout_s)
        if errors:
            raise errors[0]
        if not results:
            raise TimeoutError(f"no answer within {timeout_s:g} s")
        return results[0]

    return wait

"""What may have ended while one looks at it: psutil raises for processes gone, and for zombies."""

import psutil


def command_of(process: psutil.Process) -> str:
    """Returns its command line; none (an empty text) of one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def marked(name: str, value: str) -> list[psutil.Process]:
    """Returns the processes that run and have this variable."""
    return [process for process in psutil.process_iter() if _has(process, name, value)]


def _has(process: psutil.Process, name: str, value: str) -> bool:
    try:
        return process.environ().get(name) == value and is_alive(process)
    except (psutil.Error, OSError):
        return False


def is_alive(process: psutil.Process | int) -> bool:
    """Returns whether it runs; one that ended may wait, as a zombie, for a parent that reads it."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

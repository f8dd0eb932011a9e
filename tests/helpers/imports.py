"""What a new Python process imports, and what it says where a library is not installed."""

import subprocess
import sys


def printed_by(code: str) -> str:
    """Returns what a program prints in a process of its own."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def imported(code: str, *names: str) -> set[str]:
    """Returns which of these modules are imported once a program has run."""
    found = printed_by(f"import sys\n{code}\nprint('\\n', *({{*{names!r}}} & {{*sys.modules}}))")
    return set(found.rpartition("\n")[2].split()) & set(names)


def imported_by_command(*arguments: str, names: tuple[str, ...]) -> set[str]:
    """Returns which of these modules a command imports."""
    call = f"sys.argv = {['tune-speed', *arguments]!r}\ntry: main.main()\nexcept SystemExit: pass"
    return imported(f"from tune_speed.cli import main\n{call}", *names)


def refusal_without(*libraries: str, module: str) -> str:
    """Returns the ConfigError of importing a module where these libraries are not installed."""
    return printed_by(
        f"import sys; sys.modules.update(dict.fromkeys({libraries!r}))\n"
        "from tune_speed.core.errors import ConfigError\n"
        f"try: import {module}\n"
        "except ConfigError as error: print(error)"
    )

"""A machine with an H200, as nvidia-smi writes it."""

from pathlib import Path

UUID = "GPU-4f0c1f6e-7a5b-2d0c-9b61-0c8d3a5e7f12"
H200 = (
    f"{UUID}, 00000000:18:00.0, NVIDIA H200, 570.133.20, 700.00, 1980, 3201, 1980, 3201,"
    " Disabled, Enabled, Default, Enabled\n"
)


def fake_nvidia_smi(folder: Path, answers: dict[str, str]) -> None:
    """Puts a program there that answers queries by their last field, and refuses the others."""
    cases = "".join(
        f'*{field}) printf "%s\\n" "{text.strip()}";;\n' for field, text in answers.items()
    )
    path = folder / "nvidia-smi"
    path.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}*) echo invalid; exit 2;;\nesac\n')
    path.chmod(0o755)

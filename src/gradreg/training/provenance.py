"""Where a record comes from: versions, machine, revision."""

from __future__ import annotations

import functools
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch


def provenance(device: torch.device) -> dict[str, Any]:
    """Versions, device, threads, git revision and the time."""
    from gradreg import __version__

    return {
        "gradreg": __version__,
        "git": git_revision(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({processor()})",
        "num_threads": torch.get_num_threads(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@functools.cache
def processor() -> str:
    """The model of the CPU where the system tells it; else its architecture."""
    about = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.*\S)", about.read_text(), re.MULTILINE) if about.is_file() else None
    return named.group(1) if named else platform.machine()


@functools.cache
def git_revision() -> str | None:
    """The revision of the source tree gradreg runs from, with a + if it was changed; None where it is installed."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        command = ["git", "--no-optional-locks", *words]  # a commit beside it must not find the index locked
        return subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", here.as_posix()) else "")
    except (OSError, subprocess.CalledProcessError):
        return None

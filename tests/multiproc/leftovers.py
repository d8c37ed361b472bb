"""Leftovers of a run outside its run folder: processes, half-written files."""

import os
from collections.abc import Iterable
from pathlib import Path

import psutil


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a process that only waits for its parent to notice does not."""
    return [process for process in processes if _runs(process)]


def sessions_of(leaders: Iterable[int]) -> list[psutil.Process]:
    """All running processes whose session one of `leaders` has made."""
    wanted = set(leaders)
    return living(process for process in psutil.process_iter() if _session(process.pid) in wanted)


def unfinished(out: Path) -> list[Path]:
    """Files and folders under passing names."""
    return [path for path in out.rglob("*") if path.name.startswith(".")]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _session(process_id: int) -> int | None:
    try:
        return os.getsid(process_id)
    except OSError:
        return None

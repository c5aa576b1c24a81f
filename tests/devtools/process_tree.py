"""Which processes belong to a process: its descendants, and whoever names its folder in the command line."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> set[int]:
    """Living children, their children, and so on."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if after_name[0] != "Z":
            parents[int(stat.parent.name)] = int(after_name[1])
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found |= new
    return found


def naming(folder: Path) -> set[int]:
    """Processes with a path below `folder` among their arguments: the servers and their keeper."""
    found = set()
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = command.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"{folder}/".encode() in arguments:
            found.add(int(command.parent.name))
    return found


def state(pid: int) -> str:
    """The letter that `ps` shows: R, S, T (stopped), Z …"""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

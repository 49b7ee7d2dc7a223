"""What a daemon holds while it does nothing: processes, descriptors, files, KV blocks, memory; and what grew since.

Compares two looks at settled daemons, which may be different lives of one. Processes are compared by what they are now
(an engine serves or stands by), since lives move between names.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field

from aphrodited.chaos.targets import Target, descendants_of, targets
from aphrodited.page import read_page
from aphrodited.paths import DaemonPaths
from aphrodited.procfs import process_state, resident_bytes

SPARE_DESCRIPTORS = 4
"""That libraries keep after a first use of something."""

MEMORY_FACTOR = 1.3
SPARE_MEMORY_BYTES = 48 * 1024**2

_NUMBERED = (
    (re.compile(r"^(m/[0-9a-f]{8})/\d+(?=/|$)"), r"\1/N"),  # a generation's folder
    (re.compile(r"^(flights/engine)-.*"), r"\1"),  # one for each engine that serves
)
_MADE_ONCE = re.compile(r"^(m/[0-9a-f]{8}/(rulings|desired)|reload\.lock|metrics/(counter|histogram)_(monitor|api-\d)\.db)$")
"""By the first event of their kind, which need not come before the first look."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """One look. By role the largest number of any process, but processes are counted."""

    processes: Counter[str] = field(default_factory=Counter)
    descriptors: dict[str, int] = field(default_factory=dict)
    resident_bytes: dict[str, int] = field(default_factory=dict)
    files: Counter[str] = field(default_factory=Counter)
    num_blocks_used: int = 0

    def leaks_since(self, before: Holdings) -> list[str]:
        """In words, what there is now and should not be."""
        leaks = [
            f"{more} more of {name}"
            for now, then in ((self.processes, before.processes), (self.files, before.files))
            for name, more in (now - then).items()
        ]
        for role, number in self.descriptors.items():
            if number > before.descriptors.get(role, number) + SPARE_DESCRIPTORS:
                leaks.append(f"{number} descriptors of {role}, {before.descriptors[role]} before")
        for role, size in self.resident_bytes.items():
            if size > MEMORY_FACTOR * before.resident_bytes.get(role, size) + SPARE_MEMORY_BYTES:
                leaks.append(f"{size >> 20} MiB of {role}, {before.resident_bytes[role] >> 20} MiB before")
        if self.num_blocks_used:
            leaks.append(f"{self.num_blocks_used} KV blocks in use")
        return leaks


def holdings(daemon_pid: int, paths: DaemonPaths) -> Holdings:
    """Of a daemon that is settled. What ends during the look is not counted."""
    known = {target.pid: _role(target) for target in targets(daemon_pid, paths)}
    held = Holdings(files=files_of(paths), num_blocks_used=_num_blocks_used(daemon_pid, paths))
    for pid in [daemon_pid, *descendants_of(daemon_pid)]:
        role = known.get(pid, "helper")
        if process_state(pid) in (None, "Z", "X"):
            continue
        held.processes[role] += 1
        if role != "helper":
            held.descriptors[role] = max(held.descriptors.get(role, 0), len(os.listdir(f"/proc/{pid}/fd")))
            held.resident_bytes[role] = max(held.resident_bytes.get(role, 0), resident_bytes(pid) or 0)
    return held


def _role(target: Target) -> str:
    if not target.program:
        return "supervisord"
    if target.is_active_engine:
        return "engine"
    return "standby" if target.is_waiting_engine else target.program.partition("-")[0]


def files_of(paths: DaemonPaths) -> Counter[str]:
    """Every file of the runtime directory, without the numbers that tell lives apart."""
    names = (str(path.relative_to(paths.runtime_dir)) for path in paths.runtime_dir.rglob("*"))
    return Counter(_without_number(name) for name in names if not _MADE_ONCE.match(name))


def _without_number(name: str) -> str:
    for pattern, replacement in _NUMBERED:
        name = pattern.sub(replacement, name)
    return name


def _num_blocks_used(daemon_pid: int, paths: DaemonPaths) -> int:
    pages = (read_page(paths.page(target.program)) for target in targets(daemon_pid, paths) if target.is_active_engine)
    return sum(page.num_blocks_used for page in pages if page is not None)

"""Looks at how much memory processes hold, and carries out and tells what `health.memory` makes of it.

A restart is a SIGTERM to the very process: it hands over or drains as for any stop, and the supervisor starts the next
one, which is no strike. Knows no policy of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aphrodited.config.schema import Config
from aphrodited.health.memory import MemoryAction, MemoryPolicy, MemorySight, describe
from aphrodited.health.probes import Look
from aphrodited.log import get_logger
from aphrodited.page import Phase
from aphrodited.procfs import resident_bytes
from aphrodited.supervision.ledger import LedgerEntry, Verdict, boot_id, boottime_s, stamp
from aphrodited.supervision.programs import Program, Role

log = get_logger()

AT_WORK = (Phase.READY, Phase.STEPPING, Phase.STANDBY)


class MemoryWatch:
    """All engines and API workers. entries: of the ledger, for what an earlier monitor did. Its clock begins at 0."""

    def __init__(
        self,
        entries: Iterable[LedgerEntry],
        append: Callable[[LedgerEntry], None],
        dismiss: Callable[[int, int], bool],
        resident: Callable[[int], int | None] = resident_bytes,
    ) -> None:
        self._append = append
        self._dismiss = dismiss
        self._resident = resident
        now_s, this_boot = boottime_s(), boot_id()
        self._policy = MemoryPolicy(
            {
                entry.program: entry.at_s - now_s
                for entry in entries
                if isinstance(entry, Verdict) and entry.boot_id == this_boot and entry.action == MemoryAction.RESTART
            }
        )

    def look(self, looks: Mapping[Program, Look], config: Config, now_s: float) -> None:
        """One round. looks: of every program."""
        for program in looks:
            self._judge(program, looks, config, now_s)

    def _judge(self, program: Program, looks: Mapping[Program, Look], config: Config, now_s: float) -> None:
        page = looks[program].page
        resident = self._resident(page.pid) if page is not None and page.phase in AT_WORK else None
        if page is None or resident is None:
            return
        is_quiet = not page.num_running and not page.num_waiting
        is_quiet |= program.role is Role.ENGINE and _has_standby(program, looks)
        sight = MemorySight(page.pid, resident, _soft_limit(program, config), page.num_finished, is_quiet)
        action = self._policy.look(program.name, sight, now_s)
        if action is None:
            return
        reason = describe(action, sight)
        log.warning("memory_judged", action=action.value, reason=reason, process=program.name, process_pid=page.pid)
        common = stamp(program.name)
        self._append(
            Verdict(**common, pid=page.pid, verdict="memory", action=action, reason=reason, model=program.model)
        )
        if action is MemoryAction.RESTART and not self._dismiss(page.pid, page.start_ticks):
            log.info("process_gone", action=action.value, process=program.name, process_pid=page.pid)


def _has_standby(engine: Program, looks: Mapping[Program, Look]) -> bool:
    """Whether another engine of the model waits to take over."""
    others = (look.page for program, look in looks.items() if program.model == engine.model and program != engine)
    return any(page is not None and page.phase is Phase.STANDBY for page in others)


def _soft_limit(program: Program, config: Config) -> int | None:
    if program.role is Role.API:
        return config.api.memory_soft_limit
    return next((model.engine.memory_soft_limit for model in config.models if model.name == program.model), None)

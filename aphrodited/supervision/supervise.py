"""Becomes the supervisor: Supervisor's own main loop, in this process, with our configuration."""

from __future__ import annotations

from pathlib import Path

from supervisor import supervisord


def supervise(conf: Path) -> None:
    """Start everything that `conf` names and return when all of it has ended.

    Raises SystemExit, Supervisor's way to say that it could not start.
    """
    supervisord.main(["-n", "-c", str(conf)])

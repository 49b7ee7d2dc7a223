"""`python -m aphrodited.chaos.activated FD COMMAND...`: becomes the command as systemd would start it.

The listening socket is descriptor 3, LISTEN_PID and WATCHDOG_PID name the process, and the kernel ends it when whoever
started it ends.
"""

from __future__ import annotations

import os
import sys

from aphrodited.supervision.launcher import die_with_supervisor
from aphrodited.supervision.listening import FIRST_PASSED_FD


def main(arguments: list[str]) -> None:
    die_with_supervisor()
    listen_fd, *command = arguments
    if int(listen_fd) != FIRST_PASSED_FD:
        os.dup2(int(listen_fd), FIRST_PASSED_FD)
        os.close(int(listen_fd))
    os.set_inheritable(FIRST_PASSED_FD, True)
    pid = str(os.getpid())
    os.execve(command[0], command, {**os.environ, "LISTEN_FDS": "1", "LISTEN_PID": pid, "WATCHDOG_PID": pid})


if __name__ == "__main__":
    main(sys.argv[1:])

"""Says at once that a file was written, by inotify(7); a poll would be late or busy.

The folder is watched, not the file, so that it may be replaced or not be there yet. Linux only, through libc.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE = 0x2, 0x80, 0x100  # <sys/inotify.h>
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_READ_SIZE = 65536


class FileWatch:
    """Watches one file name in one folder. `fileno` becomes readable when something in the folder changed."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the folder does not exist or the user's inotify limit is reached."""
        self._name = os.fsencode(path.name)
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        try:
            _checked(
                libc.inotify_add_watch(
                    self._fd, os.fsencode(path.parent), _IN_MODIFY | _IN_MOVED_TO | _IN_CREATE
                )
            )
        except OSError:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        return self._fd

    def changed(self) -> bool:
        """Take what happened since the last call; whether it concerned the file. Never blocks."""
        try:
            raw = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return False
        at, concerned = 0, False
        while at < len(raw):
            watch, _, _, length = _EVENT.unpack_from(raw, at)
            name = raw[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
            concerned |= name == self._name or watch == -1  # -1: the kernel's queue overflowed
            at += _EVENT.size + length
        return concerned

    def close(self) -> None:
        os.close(self._fd)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "inotify")
    return result

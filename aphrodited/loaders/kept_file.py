"""Tensors that were expensive to make, in a file that is mapped the next time: a safetensors file with a checksum.

A file is only ever seen whole, and one that is damaged all the same is as good as none: whoever asks makes the tensors
again. Knows nothing of models. Source of the format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from aphrodited.log import get_logger
from aphrodited.procfs import process_start_ticks

log = get_logger()

_SUFFIX = ".safetensors"
_CHECKSUM = "crc32"
_TYPE_NAMES = {"int8": "I8", "int32": "I32", "float32": "F32"}
_ALIGNMENT = 8  # of the header's end, for what is mapped behind it


class KeptFile:
    """One version of one thing in a folder that keeps one version of each.

    thing: tells things apart.  version: differs if the tensors may.  Both are parts of the file's name.
    """

    def __init__(self, folder: Path, thing: str, version: str) -> None:
        self._folder = folder
        self._thing = thing
        self.path = folder / f"{thing}-{version}{_SUFFIX}"

    def read(self) -> dict[str, Tensor] | None:
        """The tensors, mapped; None if there are none, and, with a warning, if they are damaged."""
        try:
            with safe_open(self.path, framework="pt") as file:
                if (file.metadata() or {}).get(_CHECKSUM) == _checksum_of_file(self.path):
                    return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
            reason = "its checksum is wrong"
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, ValueError) as error:
            reason = str(error)
        log.warning("kept_weights_damaged", path=str(self.path), reason=reason, effect="they are made again")
        return None

    def write(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the arrays, then remove other versions. If that fails, say so, and leave things as they were."""
        temporary = self._folder / f".{self._thing}-{os.getpid()}{_SUFFIX}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(temporary, arrays)
            temporary.rename(self.path)
            _sync(self._folder)
            self._remove_others()
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            log.warning("weights_not_kept", path=str(self.path), reason=str(error), effect="the next start takes longer")
            return
        log.info("weights_kept", path=str(self.path), size_bytes=self.path.stat().st_size)

    def _remove_others(self) -> None:
        for other in self._folder.glob(f"{self._thing}-*{_SUFFIX}"):
            if other != self.path:
                other.unlink(missing_ok=True)
        for unfinished in self._folder.glob(f".{self._thing}-*{_SUFFIX}"):
            pid = unfinished.stem.rpartition("-")[2]
            if pid.isdigit() and process_start_ticks(int(pid)) is None:
                unfinished.unlink(missing_ok=True)


def _write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    header: dict[str, Any] = {}
    checksum = end = 0
    for name, array in arrays.items():
        checksum = zlib.crc32(_bytes(array), checksum)
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _TYPE_NAMES[str(array.dtype)], "shape": array.shape, "data_offsets": (start, end)}
    header["__metadata__"] = {_CHECKSUM: f"{checksum:08x}"}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in arrays.values():
            file.write(_bytes(array))
        file.flush()
        os.fsync(file.fileno())


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).data.cast("B")


def _checksum_of_file(path: Path) -> str:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
        view[8 + int.from_bytes(data[:8], "little") :] as tensors,
    ):
        return f"{zlib.crc32(tensors):08x}"


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

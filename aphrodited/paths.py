"""Where everything of one daemon lies: sockets, pages, state files, logs.

Pure functions of three directories; makes and opens nothing. Folders of models are named by a hash, so that no
model name ever becomes part of a path or of a process name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

MAX_SOCKET_PATH = 107  # sizeof(sockaddr_un.sun_path) - 1, unix(7)


def model_folder(model_name: str) -> str:
    """The folder and process-name part of a model: 8 hex digits."""
    return hashlib.sha256(model_name.encode()).hexdigest()[:8]


def engine_program(model_name: str, index: int) -> str:
    """The supervisord program name of a model's engine process."""
    return f"engine-{model_folder(model_name)}-{index}"


def api_program(index: int) -> str:
    return f"api-{index}"


MONITOR_PROGRAM = "monitor"


@dataclass(frozen=True, slots=True)
class ModelPaths:
    """One model's sockets. Each generation has a folder of its own; `current` names the active one."""

    folder: Path

    @property
    def lock(self) -> Path:
        """Held (flock) by the active engine; its text is the last generation, its process and when that started."""
        return self.folder / "lock"

    @property
    def desired(self) -> Path:
        """What the operator wants of the model; see supervision.desired."""
        return self.folder / "desired"

    @property
    def rulings(self) -> Path:
        """Which requests run alone or are refused; see aphrodited.rulings."""
        return self.folder / "rulings"

    @property
    def current(self) -> Path:
        """Text file with the active generation's number, replaced atomically after its sockets are bound."""
        return self.folder / "current"

    def generation(self, generation: int) -> Path:
        return self.folder / str(generation)

    def endpoint(self, generation: int, kind: str) -> str:
        """The ipc:// address of `input`, `output`, `health` or `data`."""
        return f"ipc://{self.generation(generation) / kind}"


@dataclass(frozen=True, slots=True)
class DaemonPaths:
    """All paths of one daemon."""

    runtime_dir: Path
    log_dir: Path
    state_dir: Path

    @property
    def effective_config(self) -> Path:
        """The validated configuration as JSON, for the workers; mode 0600."""
        return self.runtime_dir / "effective.json"

    @property
    def given(self) -> Path:
        """What the daemon was given last, before anything was decided; see config.given. Mode 0600."""
        return self.runtime_dir / "given.json"

    @property
    def reload_lock(self) -> Path:
        """flock held while a reload is carried out."""
        return self.runtime_dir / "reload.lock"

    @property
    def supervisord_conf(self) -> Path:
        return self.runtime_dir / "supervisord.conf"

    @property
    def supervisor_socket(self) -> Path:
        return self.runtime_dir / "supervisor.sock"

    @property
    def daemon_lock(self) -> Path:
        """flock held by the daemon for its life: the same configuration never runs twice."""
        return self.runtime_dir / "daemon.lock"

    @property
    def events_endpoint(self) -> str:
        return f"ipc://{self.runtime_dir / 'events.sock'}"

    @property
    def admin_socket(self) -> Path:
        """HTTP over a unix socket, served by the monitor."""
        return self.runtime_dir / "admin.sock"

    @property
    def metrics_dir(self) -> Path:
        """prometheus-client's multiprocess files."""
        return self.runtime_dir / "metrics"

    def page(self, program: str) -> Path:
        return self.runtime_dir / "pages" / program

    @property
    def flights_dir(self) -> Path:
        """What each engine computes now, or computed when it died; see aphrodited.flight."""
        return self.runtime_dir / "flights"

    def program_state(self, program: str) -> Path:
        """What the launcher says of a program while it waits: JSON."""
        return self.runtime_dir / "states" / f"{program}.json"

    def log(self, program: str) -> Path:
        return self.log_dir / f"{program}.log"

    @property
    def ledger(self) -> Path:
        return self.state_dir / "ledger.jsonl"

    @property
    def cache_dir(self) -> Path:
        """Files that can be made again: converted tokenizers and weights."""
        return self.state_dir / "cache"

    @property
    def stopping(self) -> Path:
        """There from the moment on that the whole daemon stops: nobody takes over from a process that is stopped then."""
        return self.runtime_dir / "stopping"

    def kept_desired(self, model_name: str) -> Path:
        """What the operator wants of a model, for the next daemon; see supervision.desired."""
        return self.state_dir / "desired" / model_folder(model_name)

    def model(self, model_name: str) -> ModelPaths:
        return ModelPaths(self.runtime_dir / "m" / model_folder(model_name))

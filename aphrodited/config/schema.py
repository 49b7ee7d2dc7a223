"""The configuration as typed, frozen structs: the one table that everything else is generated from.

Each leaf carries its range, its doc line and, under `extra`, its unit or kind and how `aphroditectl reload` applies a
change: one of `Apply`. A key is marked by whoever reads it: more than one of the restarts below means `daemon`.
Knows no YAML: `config.loader` builds these, `config.reference` writes examples and documentation from them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from aphrodited.config import cpus


class Apply(StrEnum):
    """How a changed value comes into force."""

    HOT = "hot"  # at once: whoever reads it looks at the file that replaces effective.json
    MONITOR = "monitor"  # by restarting the monitor
    ENGINE = "engine"  # by replacing the engines, standbys first
    API = "api"  # by restarting the API workers one after the other, on the same listening socket
    DAEMON = "daemon"  # by a full restart alone


def doc(description: str, *, apply: str, kind: str | None = None, unit: str | None = None, **limits: Any) -> Meta:
    """A leaf's metadata. kind is `size` (bytes, written as 2GiB), `path`, or None for the plain type."""
    extra = {"apply": apply, **({"kind": kind} if kind else {}), **({"unit": unit} if unit else {})}
    return Meta(description=description, extra=extra, **limits)


PositiveOrAuto = Annotated[int, Meta(ge=1)] | Literal["auto"]
StandbysOrAuto = Annotated[int, Meta(ge=0, le=4)] | Literal["auto"]
CpuList = Annotated[str, Meta(pattern=cpus.PATTERN)]
SizeOrAuto = Annotated[int, Meta(ge=1024**2)] | Literal["auto"]
SizeOrNothing = Annotated[int, Meta(ge=1024**2)] | None


class EngineConfig(msgspec.Struct, frozen=True):
    """How one model's engine computes."""

    threads: Annotated[
        PositiveOrAuto,
        doc("Compute threads of the engine; auto is the number of cores it may use.", apply="engine", unit="threads"),
    ] = "auto"
    max_num_seqs: Annotated[
        int, doc("Sequences computed in one step at most.", apply="engine", unit="sequences", ge=1, le=4096)
    ] = 256
    max_num_batched_tokens: Annotated[
        int,
        doc("Tokens computed in one step at most; long prompts are cut into chunks of this.", apply="engine", unit="tokens", ge=16, le=1048576),
    ] = 2048
    block_size: Annotated[
        int, doc("Token slots in one block of the KV cache; a power of two.", apply="engine", unit="tokens", ge=4, le=256)
    ] = 16
    kv_cache_memory: Annotated[
        SizeOrAuto,
        doc(
            "Memory of the KV cache; auto is what max_num_seqs sequences need, at most a quarter of the free memory and 2GiB, on a GPU 80% of what is free there.",
            apply="engine",
            kind="size",
            unit="bytes",
        ),
    ] = "auto"
    max_num_waiting: Annotated[
        PositiveOrAuto,
        doc("Requests that may wait for a place; more are refused with 429. auto is 4 x max_num_seqs.", apply="engine", unit="requests"),
    ] = "auto"
    enable_prefix_caching: Annotated[
        bool, doc("Reuse KV blocks of prompts that begin alike.", apply="engine")
    ] = True
    cpus: Annotated[
        CpuList | None, doc("CPUs the engine may run on, such as 0-3,8; without it, all that the daemon may use.", apply="engine")
    ] = None
    wait_policy: Annotated[
        Literal["passive", "active"],
        doc(
            "What compute threads do between two pieces of work: sleep, or spin, which is only faster on CPUs that nothing else uses.",
            apply="engine",
        ),
    ] = "passive"
    memory_soft_limit: Annotated[
        SizeOrNothing,
        doc(
            "Resident memory above which the engine is replaced at a quiet moment, at most once in 10 minutes; without it, none.",
            apply="hot",
            kind="size",
            unit="bytes",
        ),
    ] = None


class ModelConfig(msgspec.Struct, frozen=True):
    """One model to serve."""

    name: Annotated[
        str,
        doc("The name clients ask for.", apply="daemon", pattern=r"^[A-Za-z0-9._:/@+-]{1,128}$"),
    ]
    path: Annotated[
        str,
        doc("A .gguf file, a directory in Hugging Face layout, or a hub id; relative to this file.", apply="daemon", kind="path"),
    ]
    backend: Annotated[
        Literal["embedded", "null"],
        doc("Which engine computes. null computes nothing: for drills and for measuring the transport.", apply="engine"),
    ] = "embedded"
    standby: Annotated[
        StandbysOrAuto,
        doc(
            "Warm standby engines: loaded and waiting to take over when the active one dies. auto is 1 on the CPU"
            " if the memory that is free when the daemon starts holds one more engine, else 0.",
            apply="daemon",
            unit="processes",
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        doc("Number format of weights and KV cache; auto is float32 on the CPU, bfloat16 on a GPU.", apply="engine"),
    ] = "auto"
    max_model_len: Annotated[
        PositiveOrAuto,
        doc("Prompt and answer together, at most; auto is what the model was trained for, at most 8192.", apply="engine", unit="tokens"),
    ] = "auto"
    load_format: Annotated[
        Literal["auto", "safetensors", "gguf", "dummy"],
        doc("How weights are read; dummy makes random ones of the model's shape, for benchmarks.", apply="engine"),
    ] = "auto"
    engine: EngineConfig = EngineConfig()
    quantization: Annotated[
        Literal["none", "int8"],
        doc("int8 rounds weights and activations to 8 bits, keys and values to 16: faster, about half the memory, slightly other answers.", apply="engine"),
    ] = "none"
    device: Annotated[
        str,
        doc(
            "What computes: cpu, cuda:N for one of NVIDIA's GPUs, auto for the first of them if there is one, else the CPU.",
            apply="engine",
            pattern=r"^(auto|cpu|cuda:[0-9]{1,3})$",
        ),
    ] = "auto"

    @property
    def num_standbys(self) -> int:
        """How many standbys there are; none as long as `auto` is undecided, as outside a daemon."""
        return 0 if self.standby == "auto" else self.standby


class ApiConfig(msgspec.Struct, frozen=True):
    """The public HTTP port."""

    host: Annotated[str, doc("Address to listen on. Beyond loopback keys_file is required.", apply="daemon")] = "127.0.0.1"
    port: Annotated[int, doc("Port to listen on; 0 takes a free one.", apply="daemon", ge=0, le=65535)] = 2242
    workers: Annotated[int, doc("API worker processes.", apply="daemon", unit="processes", ge=1, le=64)] = 2
    keys_file: Annotated[
        str | None, doc("File of API keys, one a line, or credential:NAME for one that systemd hands over; without it no key is asked for.", apply="api", kind="path")
    ] = None
    admin_keys_file: Annotated[
        str | None, doc("File of admin keys, one a line; without it admin routes are closed, but for a loopback address without keys_file.", apply="api", kind="path")
    ] = None
    allow_unauthenticated: Annotated[
        bool, doc("Allow listening beyond loopback without keys.", apply="api")
    ] = False
    max_body_size: Annotated[
        int, doc("Largest request body; a larger one is refused with 413.", apply="api", kind="size", unit="bytes", ge=1024)
    ] = 8 * 1024**2
    drain_timeout_s: Annotated[
        float, doc("How long a stopping worker lets running requests finish.", apply="api", unit="seconds", ge=0, le=3600)
    ] = 30.0
    deadline_s: Annotated[
        float, doc("Longest time from a request's arrival to the end of its answer, after which it ends with 504; 0 is no limit.", apply="api", unit="seconds", ge=0)
    ] = 0.0
    cpus: Annotated[
        CpuList | None, doc("CPUs the API workers may run on, such as 0-3,8; without it, all that the daemon may use.", apply="api")
    ] = None
    max_choices: Annotated[int, doc("Largest n a request may ask for.", apply="api", unit="choices", ge=1, le=128)] = 16
    keepalive_s: Annotated[
        float, doc("Pause after which a waiting stream sends a comment line.", apply="api", unit="seconds", ge=1, le=600)
    ] = 15.0
    memory_soft_limit: Annotated[
        SizeOrNothing,
        doc(
            "Resident memory above which an API worker is replaced at a quiet moment, at most once in 10 minutes; without it, none.",
            apply="hot",
            kind="size",
            unit="bytes",
        ),
    ] = None


class MqConfig(msgspec.Struct, frozen=True):
    """The ZeroMQ sockets between API workers and engines."""

    max_message_size: Annotated[
        int, doc("Largest frame a socket accepts.", apply="daemon", kind="size", unit="bytes", ge=65536)
    ] = 64 * 1024**2
    output_hwm: Annotated[
        int, doc("Output frames queued for one client before it counts as stalled.", apply="daemon", unit="frames", ge=16)
    ] = 1000
    input_hwm: Annotated[
        int, doc("Requests queued towards an engine before a client is told that the queue is full.", apply="daemon", unit="frames", ge=16)
    ] = 4096
    attach_timeout_s: Annotated[
        float, doc("How long a client waits for an engine's answer to its hello before it asks again.", apply="api", unit="seconds", ge=0.05, le=60)
    ] = 2.0
    heartbeat_s: Annotated[
        float, doc("Pause between the heartbeats an engine publishes.", apply="engine", unit="seconds", ge=0.05, le=60)
    ] = 1.0
    async_sockets: Annotated[
        bool, doc("Send a step's outputs from a thread, while the next step computes.", apply="engine")
    ] = True
    stats_log_s: Annotated[
        float, doc("Pause between an engine's log lines of statistics while it works; 0 is off.", apply="engine", unit="seconds", ge=0)
    ] = 60.0


class MonitorConfig(msgspec.Struct, frozen=True):
    """The health monitor's own listener."""

    host: Annotated[str, doc("Address of the monitor's health and metrics listener.", apply="monitor")] = "127.0.0.1"
    port: Annotated[int, doc("Port of that listener; 0 takes a free one.", apply="monitor", ge=0, le=65535)] = 2243
    interval_s: Annotated[
        float, doc("Pause between two looks at the processes.", apply="monitor", unit="seconds", ge=0.05, le=10)
    ] = 0.5


class RecoveryConfig(msgspec.Struct, frozen=True):
    """What happens when something dies or hangs."""

    on_engine_death: Annotated[
        Literal["fail", "resume"],
        doc("What running requests get when their engine dies: resume lets them go on in the next one, fail an error at once.", apply="api"),
    ] = "resume"
    max_resumes: Annotated[
        int, doc("How often one request may go on in another engine.", apply="api", unit="engines", ge=1, le=1000)
    ] = 20
    hold_timeout_s: Annotated[
        float, doc("How long a request, new or interrupted, waits for an engine that is about to start; 0 refuses at once.", apply="api", unit="seconds", ge=0, le=3600)
    ] = 60.0
    max_held_requests: Annotated[
        int, doc("Requests one API worker holds for an engine at most.", apply="api", unit="requests", ge=0)
    ] = 256
    hang_min_s: Annotated[
        float, doc("Shortest standstill of an engine with work that counts as a hang.", apply="engine", unit="seconds", ge=1, le=3600)
    ] = 30.0
    load_stall_s: Annotated[
        float, doc("Longest standstill of an engine that loads.", apply="hot", unit="seconds", ge=5, le=3600)
    ] = 120.0
    loop_hang_s: Annotated[
        float, doc("Longest standstill of an API worker's or the monitor's event loop.", apply="hot", unit="seconds", ge=2, le=600)
    ] = 10.0
    ladder_step_s: Annotated[
        float, doc("Pause between stack dump, SIGABRT and SIGKILL of a hanging process.", apply="hot", unit="seconds", ge=0.1, le=60)
    ] = 5.0
    max_strikes: Annotated[
        int, doc("Deaths in a row before a first finished request after which a process is parked.", apply="hot", unit="deaths", ge=1, le=100)
    ] = 3
    max_deaths: Annotated[
        int, doc("Deaths within 10 minutes after which a process is parked.", apply="hot", unit="deaths", ge=2, le=10000)
    ] = 20
    strike_delay_s: Annotated[
        float, doc("Wait after the first strike; doubles to 60 s.", apply="hot", unit="seconds", ge=0.1, le=60)
    ] = 1.0
    probe_minutes: Annotated[
        tuple[Annotated[float, Meta(gt=0, le=10080)], ...],
        doc("When a parked process is tried again, in minutes after parking; the last repeats.", apply="hot", unit="minutes", min_length=1, max_length=16),
    ] = (5.0, 15.0, 60.0)
    core_dumps: Annotated[bool, doc("Let crashing processes write core files.", apply="daemon")] = False
    engine_stop_timeout_s: Annotated[
        float, doc("How long an engine may take to stop before it is killed.", apply="engine", unit="seconds", ge=1, le=600)
    ] = 10.0


class LoggingConfig(msgspec.Struct, frozen=True):
    """Where log lines go and which."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], doc("Least severe level that is written.", apply="hot")
    ] = "info"
    max_size: Annotated[
        int, doc("Size at which a log file is rotated; 0 never.", apply="daemon", kind="size", unit="bytes", ge=0)
    ] = 50 * 1024**2
    backups: Annotated[int, doc("Rotated files kept.", apply="daemon", unit="files", ge=0, le=100)] = 5


class PathsConfig(msgspec.Struct, frozen=True):
    """Directories, made on start if missing. /etc/aphrodited/config.yaml has /run, /var/lib and /var/log/aphrodited."""

    runtime_dir: Annotated[
        str | None, doc("Sockets and pages; by itself $RUNTIME_DIRECTORY, else $XDG_RUNTIME_DIR or /tmp with a name made from this file's path.", apply="daemon", kind="path")
    ] = None
    log_dir: Annotated[str | None, doc("Log files; by itself $LOGS_DIRECTORY, else log under state_dir.", apply="daemon", kind="path")] = None
    state_dir: Annotated[
        str | None, doc("What outlives a restart; by itself $STATE_DIRECTORY, else $XDG_STATE_HOME or ~/.local/state with a name made from this file's path.", apply="daemon", kind="path")
    ] = None


class Config(msgspec.Struct, frozen=True):
    """The whole file. After `config.loader.load_config` every path is absolute and every directory set."""

    models: Annotated[tuple[ModelConfig, ...], Meta(min_length=1)]
    api: ApiConfig = ApiConfig()
    mq: MqConfig = MqConfig()
    monitor: MonitorConfig = MonitorConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    logging: LoggingConfig = LoggingConfig()
    paths: PathsConfig = PathsConfig()

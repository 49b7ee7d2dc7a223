import msgspec
import pytest

from aphrodited.config.schema import ApiConfig, Config, ModelConfig
from aphrodited.health.probes import NOTHING_SEEN, look_at
from aphrodited.health.record import Record
from aphrodited.health.status import merge_status, read_status
from aphrodited.page import Phase
from aphrodited.paths import MONITOR_PROGRAM, api_program, engine_program
from aphrodited.supervision.ledger import Death, Ledger, Verdict, boottime_s, stamp
from aphrodited.supervision.program_state import LaunchState, ProgramState, write_program_state
from aphrodited.supervision.programs import programs
from aphrodited.supervision.rpc import ProcessInfo

ENGINE = engine_program("demo", 0)
OTHER = engine_program("other", 0)


def info(name, statename="RUNNING", pid=0, spawnerr=""):
    return ProcessInfo(name, statename, pid, 0, 0, 0, 0, spawnerr)


@pytest.fixture
def status_of(config, paths, sleeper):
    """status_of(infos): what is merged from them and from what the test wrote; the sleeper is every process."""

    def merge(*infos, daemon_started_at_s=None, entries=()):
        known = programs(config)
        given = {i.name: i for i in infos}
        all_infos = {p.name: given.get(p.name, info(p.name, "STOPPED")) for p in known}
        looks = {program.name: look_at(program.name, paths) for program in known}
        record = Record(entries, daemon_started_at_s)
        return merge_status(config, known, all_infos, looks, record, sleeper.pid, "")

    return merge


def by_name(status):
    return {process.name: process for process in status.processes}


def launch(paths, program, pid, state, **fields):
    write_program_state(paths.program_state(program), ProgramState(program, pid, state, boottime_s(), **fields))


def death(program, **fields):
    return Death(**stamp(program), pid=1, uptime_s=1.0, **fields)


def test_a_daemon_that_is_down_is_all_stopped(config, paths):
    status = read_status(config, paths)
    assert not status.ready
    assert status.state == "down"
    assert "is it running?" in status.reason
    assert {process.state for process in status.processes} == {"stopped"}
    assert {model.state for model in status.models} == {"stopped"}
    assert {process.pid for process in status.processes} == {None}


def test_the_json_has_the_stable_shape(config, paths):
    status = msgspec.json.decode(read_status(config, paths).to_json())
    assert {"ready", "processes", "models"} <= status.keys()
    assert status["ready"] is False
    for process in status["processes"]:
        assert {
            "name", "role", "model", "state", "pid", "generation", "uptime_s", "restarts", "last_exit",
        } <= process.keys()  # fmt: skip
    assert {process["role"] for process in status["processes"]} == {"engine", "api", "monitor", "supervisor"}
    assert [model["name"] for model in status["models"]] == ["demo", "other"]
    assert {"name", "state", "generation"} <= status["models"][0].keys()


def test_ready_means_that_everything_configured_serves(status_of, paths, page_of, sleeper):
    names = [ENGINE, OTHER, api_program(0), MONITOR_PROGRAM]
    for name in names:
        page_of(name, sleeper.pid).update(phase=Phase.READY)
    status = status_of(*(info(name, pid=sleeper.pid) for name in names))
    assert status.ready
    assert status.state == "ready"
    one_less = status_of(*(info(name, pid=sleeper.pid) for name in names if name != OTHER))
    assert not one_less.ready
    assert one_less.state == "degraded"


def test_an_engine_shows_generation_load_and_cache(status_of, page_of, sleeper):
    page_of(ENGINE, sleeper.pid).update(
        phase=Phase.STEPPING, generation=4, num_running=2, num_waiting=1, num_blocks_used=10, num_blocks_total=64
    )
    status = status_of(info(ENGINE, pid=sleeper.pid))
    engine, model = by_name(status)[ENGINE], status.models[0]
    assert (engine.state, engine.generation, engine.pid, engine.model) == ("ready", 4, sleeper.pid, "demo")
    assert engine.uptime_s is not None
    assert engine.rss_bytes
    assert (model.state, model.generation, model.num_running, model.num_waiting) == ("ready", 4, 2, 1)
    assert (model.kv_blocks_used, model.kv_blocks_total) == (10, 64)


def test_a_loading_engine_shows_its_progress(status_of, page_of, sleeper):
    page_of(ENGINE, sleeper.pid).update(phase=Phase.LOADING, progress=0.25, message="reading weights")
    status = status_of(info(ENGINE, pid=sleeper.pid))
    assert (status.models[0].state, status.models[0].progress) == ("loading", 0.25)
    assert status.models[0].reason == "reading weights"
    assert status.state == "starting"


def test_a_model_is_not_called_deterministic_before_its_engine_says_so(status_of, page_of, sleeper):
    page = page_of(ENGINE, sleeper.pid)
    page.update(phase=Phase.LOADING)
    assert status_of(info(ENGINE, pid=sleeper.pid)).models[0].deterministic is None
    for truth in (True, False):
        page.update(phase=Phase.READY, is_deterministic=truth)
        assert status_of(info(ENGINE, pid=sleeper.pid)).models[0].deterministic is truth
    assert status_of(info(ENGINE, "STOPPED")).models[0].deterministic is None


@pytest.mark.parametrize("state", [LaunchState.BACKOFF, LaunchState.PARKED])
def test_a_process_that_must_wait_shows_why_and_for_how_long(status_of, paths, sleeper, state):
    launch(paths, ENGINE, sleeper.pid, state, reason="weights are damaged", next_try_at_s=boottime_s() + 100)
    engine = by_name(status_of(info(ENGINE, pid=sleeper.pid)))[ENGINE]
    assert (engine.state, engine.reason) == (str(state), "weights are damaged")
    assert engine.next_try_s is not None
    assert 90 < engine.next_try_s <= 100


def test_the_page_of_an_earlier_life_says_nothing_about_this_one(status_of, page_of, sleeper):
    page_of(ENGINE, sleeper.pid).update(phase=Phase.READY, generation=3)
    engine = by_name(status_of(info(ENGINE, pid=sleeper.pid + 1)))[ENGINE]
    assert (engine.state, engine.generation) == ("starting", None)


def test_restarts_are_the_deaths_since_the_daemon_started(status_of):
    before = msgspec.structs.replace(death(ENGINE), at_s=boottime_s() - 3600)
    other_boot = msgspec.structs.replace(death(ENGINE), boot_id="another")
    entries = [before, other_boot, death(ENGINE, signal="SIGKILL", cause="killed by SIGKILL"), death(OTHER)]
    engine = by_name(status_of(daemon_started_at_s=boottime_s() - 60, entries=entries))[ENGINE]
    assert engine.restarts == 1
    assert engine.last_exit is not None
    assert (engine.last_exit.signal, engine.last_exit.summary) == ("SIGKILL", "killed by SIGKILL")


def test_the_daemon_is_up_since_it_started_which_its_process_may_have_done_long_before(status_of):
    status = status_of(daemon_started_at_s=boottime_s() - 1000)
    assert 1000 <= status.uptime_s < 1060
    assert by_name(status)["supervisord"].uptime_s == status.uptime_s
    assert status_of(daemon_started_at_s=None).uptime_s is None


@pytest.mark.parametrize(
    ("action", "state"),
    [("suspect", "suspect"), ("kill", "suspect"), ("cleared", "ready"), ("unkillable", "unkillable"), ("new", "ready")],
)
def test_the_last_verdict_on_this_process_shows(status_of, page_of, sleeper, action, state):
    page_of(ENGINE, sleeper.pid).update(phase=Phase.READY)
    verdicts = [
        Verdict(**stamp(ENGINE), pid=sleeper.pid, verdict="hang", action="suspect", reason="no progress"),
        Verdict(**stamp(ENGINE), pid=sleeper.pid, verdict="hang", action=action, reason="no progress"),
        Verdict(**stamp(ENGINE), pid=sleeper.pid + 1, verdict="hang", action="unkillable", reason="another"),
    ]
    engine = by_name(status_of(info(ENGINE, pid=sleeper.pid), entries=verdicts))[ENGINE]
    assert engine.state == state
    if state != "ready":
        assert engine.reason == "no progress"


def test_a_process_that_could_not_be_spawned_says_so(status_of):
    engine = by_name(status_of(info(ENGINE, "FATAL", spawnerr="command not found")))[ENGINE]
    assert (engine.state, engine.reason) == ("parked", "command not found")


def test_without_an_answer_from_the_supervisor_living_processes_speak_for_themselves(config, page_of, paths, sleeper):
    page_of(ENGINE, sleeper.pid).update(phase=Phase.READY, generation=1)
    known = programs(config)
    looks = {program.name: look_at(program.name, paths) for program in known}
    status = merge_status(config, known, None, looks, Record([], None), sleeper.pid, "no answer")
    processes = by_name(status)
    assert (processes["supervisord"].state, processes["supervisord"].pid) == ("suspect", sleeper.pid)
    assert (processes[ENGINE].state, processes[ENGINE].pid) == ("ready", sleeper.pid)
    assert processes[OTHER].state == "stopped"
    assert (status.ready, status.state, status.reason) == (False, "degraded", "no answer")


def test_a_program_that_the_supervisor_does_not_have_is_stopped(config):
    known = programs(config)
    looks = {program.name: NOTHING_SEEN for program in known}
    status = merge_status(config, known, {}, looks, Record([], None), 1, "")
    assert by_name(status)[ENGINE].state == "stopped"


def test_an_unreadable_ledger_is_said_and_does_no_harm(config, paths):
    paths.ledger.mkdir()
    assert read_status(config, paths).processes


def test_the_state_written_by_a_ledger_on_disk_is_read(config, paths):
    Ledger(paths.ledger).append(death(ENGINE, code=70, cause="boom"))
    engine = by_name(read_status(config, paths))[ENGINE]
    assert engine.last_exit is not None
    assert engine.last_exit.cause == "boom"
    assert engine.restarts == 0  # no daemon runs, so none since it started


def test_a_model_is_its_active_engine_and_counts_the_others_that_wait(paths, page_of, sleeper):
    config = Config(models=(ModelConfig("demo", "/m/demo", standby=1),), api=ApiConfig(workers=1))
    names = [engine_program("demo", 0), engine_program("demo", 1)]
    page_of(names[0], sleeper.pid).update(phase=Phase.STANDBY)
    page_of(names[1], sleeper.pid).update(phase=Phase.READY, generation=4, num_running=2)
    known = programs(config)
    infos = {name: info(name, pid=sleeper.pid) for name in names}
    looks = {name: look_at(name, paths) for name in names}
    status = merge_status(config, known, infos, looks, Record([], None), sleeper.pid, "")
    (model,) = status.models
    assert (model.state, model.generation, model.num_running, model.num_standby) == ("ready", 4, 2, 1)
    assert [(by_name(status)[name].state, by_name(status)[name].generation) for name in names] == [
        ("standby", None),
        ("ready", 4),
    ]
    assert by_name(status)[names[0]].rss_bytes > 0


def test_an_engine_that_waits_for_its_peers_says_for_what(status_of, paths, sleeper):
    launch(paths, ENGINE, sleeper.pid, LaunchState.WAITING, reason="engine 1 is about to serve")
    process = by_name(status_of(info(ENGINE, pid=sleeper.pid)))[ENGINE]
    assert (process.state, process.reason) == ("starting", "engine 1 is about to serve")

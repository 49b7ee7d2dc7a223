from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aphrodited.config.schema import ApiConfig, Config, LoggingConfig, ModelConfig, PathsConfig
from aphrodited.errors import ConfigError
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.conf_writer import check_conf, parse_conf, render_conf, write_conf

GOLDEN = Path(__file__).parents[3] / "etc" / "supervisord.conf"
LAUNCHER = ["/opt/aphrodited/.venv/bin/python", "-P", "-m", "aphrodited.cli.launcher"]
PATHS = DaemonPaths(Path("/run/aphrodited"), Path("/var/log/aphrodited"), Path("/var/lib/aphrodited"))
CONFIG = Config(models=(ModelConfig(name="SmolLM2-135M-Instruct", path="/srv/models/smollm2.gguf", standby=1),))


def paths_in(folder: Path) -> DaemonPaths:
    paths = DaemonPaths(folder / "run", folder / "log", folder / "state")
    for path in (paths.runtime_dir, paths.log_dir):
        path.mkdir(parents=True, exist_ok=True)
    return paths


def test_the_golden_file_is_what_the_writer_writes():
    assert render_conf(CONFIG, PATHS, LAUNCHER, 3) == GOLDEN.read_text()


def test_supervisor_reads_back_what_was_meant(tmp_path):
    paths = paths_in(tmp_path / "with a blank")
    write_conf(CONFIG, paths, LAUNCHER, 7)
    assert paths.supervisord_conf.stat().st_mode & 0o777 == 0o600
    parsed = parse_conf(paths.supervisord_conf)
    assert list(parsed["programs"]) == ["monitor", "engine-d26ab3ee-0", "engine-d26ab3ee-1", "api-0", "api-1"]
    assert parsed["programs"]["api-1"]["argv"] == [
        *LAUNCHER,
        "--runtime-dir",
        str(paths.runtime_dir),
        "--program",
        "api-1",
        "--listen-fd",
        "7",
    ]
    assert "--listen-fd" not in parsed["programs"]["monitor"]["argv"]


def test_engines_of_an_unloaded_model_are_not_started(tmp_path):
    paths = paths_in(tmp_path)
    other = ModelConfig(name="other", path="/srv/models/other.gguf", standby=0)
    config = msgspec.structs.replace(CONFIG, models=(*CONFIG.models, other))
    write_conf(config, paths, LAUNCHER, 7, {CONFIG.models[0].name})
    parsed = parse_conf(paths.supervisord_conf)
    not_started = {name for name, program in parsed["programs"].items() if not program["autostart"]}
    assert not_started == {"engine-d26ab3ee-0", "engine-d26ab3ee-1"}
    with pytest.raises(RuntimeError):
        check_conf(config, paths, LAUNCHER, 7)


def test_a_file_that_says_something_else_is_not_used(tmp_path):
    paths = paths_in(tmp_path)
    write_conf(CONFIG, paths, LAUNCHER, 7)
    text = paths.supervisord_conf.read_text()
    paths.supervisord_conf.write_text(text + "\n[program:api-9]\ncommand=/bin/true\n")
    with pytest.raises(RuntimeError, match="api-9"):
        check_conf(CONFIG, paths, LAUNCHER, 7)


@pytest.mark.parametrize("name", ["a%b", "a ;b", "a #b", "a\nb", "a\x00b", 'a"b', "a'b", "ä", "a$b", "a\\b", "blank "])
def test_a_path_that_the_format_cannot_carry_is_refused(name):
    paths = DaemonPaths(Path("/tmp") / name, PATHS.log_dir, PATHS.state_dir)
    with pytest.raises(ConfigError, match=r"paths\.runtime_dir"):
        render_conf(CONFIG, paths, LAUNCHER, 3)
    with pytest.raises(ConfigError, match=r"paths\.log_dir"):
        render_conf(CONFIG, DaemonPaths(PATHS.runtime_dir, Path("/tmp") / name, PATHS.state_dir), LAUNCHER, 3)


NASTY = st.text(st.sampled_from(" ;#%\n\r\t\"'\\[]=:$`{}()abcA/.-é\x00\x7f"), max_size=20)


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(NASTY | st.text(max_size=30), min_size=1, max_size=4, unique=True),
    text=NASTY,
    workers=st.integers(1, 64),
    size=st.integers(0, 2**40),
    drain_s=st.floats(0, 3600),
    path=NASTY,
)
def test_no_user_value_reaches_the_file(tmp_path_factory, names, text, workers, size, drain_s, path):
    """Whatever stands in the configuration, even what the loader would refuse, the file holds what was meant."""
    config = Config(
        models=tuple(ModelConfig(name=name, path=text) for name in names),
        api=ApiConfig(host=text, workers=workers, keys_file=text, drain_timeout_s=drain_s),
        logging=LoggingConfig(max_size=size),
        paths=PathsConfig(runtime_dir=text, log_dir=text, state_dir=text),
    )
    folder = tmp_path_factory.mktemp("conf")
    paths = paths_in(folder)
    write_conf(config, paths, LAUNCHER, 3)  # compares by itself
    neutral = msgspec.structs.replace(
        config,
        api=msgspec.structs.replace(config.api, host="h", keys_file=None),
        models=tuple(ModelConfig(name=name, path="p") for name in names),
        paths=PathsConfig(),
    )
    assert paths.supervisord_conf.read_text() == render_conf(neutral, paths, LAUNCHER, 3)
    odd = DaemonPaths(paths.runtime_dir, Path(f"{folder}/{path}".replace("\x00", "")), paths.state_dir)
    try:
        rendered = render_conf(config, odd, LAUNCHER, 3)
    except ConfigError:
        return
    assert rendered.count("[program:") == len(names) + workers + 1

"""Loading a configuration file: what is accepted, what is refused and how it is said."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from aphrodited.config.directories import SYSTEM_CONFIG, with_directories
from aphrodited.config.loader import (
    daemon_paths,
    find_paths,
    load,
    load_config,
    read_effective,
    write_effective,
)
from aphrodited.config.schema import Config, PathsConfig
from aphrodited.errors import ConfigError
from aphrodited.paths import model_folder

MINIMAL = "models:\n  - name: m\n    path: org/model\n"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    for variable in ("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "LOGS_DIRECTORY", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))

    def write_file(text: str, name: str = "a.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    return write_file


def problems(path: Path, *overrides: str) -> list[str]:
    """The problems, each with the file's folder left out."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return [problem.replace(f"{path.parent}/", "") for problem in caught.value.problems]


def heads(path: Path, *overrides: str) -> list[str]:
    return [problem.splitlines()[0] for problem in problems(path, *overrides)]


def test_a_minimal_file_gets_every_default(write: Write) -> None:
    config = load_config(write(MINIMAL))
    assert config.models[0].engine.max_num_seqs == 256
    assert (config.api.host, config.api.port, config.monitor.port) == ("127.0.0.1", 2242, 2243)


def test_values_of_the_file_are_taken_over(write: Write) -> None:
    config = load_config(
        write(
            MINIMAL
            + "    engine: {kv_cache_memory: 1.5GiB, threads: 2, enable_prefix_caching: false}\n"
            + "api: {max_body_size: 4096, drain_timeout_s: 3, port: 0}\n"
            + "recovery:\n  probe_minutes: [0.5, 2]\n"
        )
    )
    engine = config.models[0].engine
    assert engine.kv_cache_memory == 3 * 512 * 1024**2
    assert (engine.threads, engine.enable_prefix_caching) == (2, False)
    assert (config.api.max_body_size, config.api.drain_timeout_s) == (4096, 3.0)
    assert isinstance(config.api.drain_timeout_s, float)
    assert config.recovery.probe_minutes == (0.5, 2.0)


def test_all_problems_come_at_once_in_the_order_of_the_file(write: Write) -> None:
    path = write(
        "models:\n"
        "  - name: m\n"
        "    path: x.gguf\n"
        "    engine:\n"
        "      max_num_seq: 8\n"
        "      block_size: 12\n"
        "api:\n"
        "  port: 70000\n"
        "  workers: many\n"
    )
    assert heads(path) == [
        "a.yaml:5:7: models[0].engine.max_num_seq: unknown key; did you mean max_num_seqs?",
        "a.yaml:6:19: models[0].engine.block_size: expected a power of two, found 12",
        "a.yaml:8:9: api.port: expected an integer from 0 to 65535, found the number 70000",
        "a.yaml:9:12: api.workers: expected an integer from 1 to 64, found the text 'many'",
    ]


def test_a_problem_shows_its_line_and_points_at_the_place(write: Write) -> None:
    (problem,) = problems(write(MINIMAL + "api:\n\n  port:   x\n"))
    assert problem.splitlines()[1:] == ["      port:   x", "              ^"]


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "1", '"true"', "[true]", "{}", ""])
def test_only_true_and_false_are_booleans(write: Write, word: str) -> None:
    (problem,) = heads(write(MINIMAL + f"recovery:\n  core_dumps: {word}\n"))
    assert "recovery.core_dumps: expected true or false, found" in problem


@pytest.mark.parametrize("word", ["true", "True", "TRUE"])
def test_true_is_true(write: Write, word: str) -> None:
    assert load_config(write(MINIMAL + f"recovery:\n  core_dumps: {word}\n")).recovery.core_dumps


@pytest.mark.parametrize("text", ["no", "on", "Norway", "'12'", "a:b", "n"])
def test_words_that_older_yaml_takes_for_booleans_are_names(write: Write, text: str) -> None:
    assert load_config(write(f"models: [{{name: {text}, path: org/m}}]")).models[0].name == text.strip("'")


@pytest.mark.parametrize("text", ["12", "1.5", "true", "null", "~", "1e3", "", "a b", "'a\\nb'", "é"])
def test_what_is_no_name_is_refused(write: Write, text: str) -> None:
    assert heads(write(f"models:\n  - name: {text}\n    path: org/m\n"))[0].startswith("a.yaml:2:")


@pytest.mark.parametrize("text", ["010", "0x10", "1_000", "1:30", "3.0", "1e2", "'4'", ".inf", "true", "9" * 40])
def test_what_is_no_plain_integer_is_refused(write: Write, text: str) -> None:
    (problem,) = heads(write(MINIMAL + f"api:\n  workers: {text}\n"))
    assert "api.workers: expected an integer from 1 to 64, found" in problem


@pytest.mark.parametrize("text", [".nan", ".inf", "-1", "3601", "1_0", "ten"])
def test_what_is_no_number_in_range_is_refused(write: Write, text: str) -> None:
    (problem,) = heads(write(MINIMAL + f"api:\n  drain_timeout_s: {text}\n"))
    assert "api.drain_timeout_s: expected a number from 0 to 3600" in problem


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64KiB", 65536), ("1 MiB", 1024**2), ("0.5GiB", 2**29), ("1TiB", 2**40), ("2048B", 2048)],
)
def test_sizes_are_written_with_binary_units(write: Write, text: str, size: int) -> None:
    assert load_config(write(MINIMAL + f"api:\n  max_body_size: {text}\n")).api.max_body_size == size


@pytest.mark.parametrize("text", ["2GB", "2G", "1KiB 2", "GiB", "-1MiB", "1.5", "8 mib", "10B"])
def test_other_sizes_are_refused(write: Write, text: str) -> None:
    (problem,) = heads(write(MINIMAL + f"api:\n  max_body_size: {text}\n"))
    assert "api.max_body_size: expected a size such as 2GiB" in problem


def test_a_decimal_unit_is_told_the_right_one(write: Write) -> None:
    assert "so write GiB" in heads(write(MINIMAL + "api:\n  max_body_size: 2GB\n"))[0]


def test_the_null_backend_is_a_name_not_an_absence(write: Write) -> None:
    assert load_config(write("models: [{name: m, path: org/m, backend: null}]")).models[0].backend == "null"


def test_a_section_whose_keys_are_all_comments_has_its_defaults(write: Write) -> None:
    assert load_config(write(MINIMAL + "api:\n  # port: 1\nmq: null\n")).api.port == 2242


def test_a_key_given_twice_is_refused_and_the_first_is_named(write: Write) -> None:
    assert heads(write(MINIMAL + "api: {port: 1}\napi: {port: 2}\n")) == [
        "a.yaml:5:1: api: is given twice; the first is in line 4"
    ]


def test_a_key_in_the_wrong_section_is_sent_home(write: Write) -> None:
    (problem,) = heads(write(MINIMAL + "hang_min_s: 2\n"))
    assert problem == "a.yaml:4:1: hang_min_s: unknown key; it belongs to recovery.hang_min_s"


def test_a_key_unlike_any_other_gets_the_list(write: Write) -> None:
    assert "known here: host, port, interval_s" in heads(write(MINIMAL + "monitor: {zzz: 1}\n"))[0]


def test_missing_required_keys_are_named(write: Write) -> None:
    found = heads(write("models:\n  - backend: null\n"))
    assert found[0].startswith("a.yaml:2:5: models[0].name: is missing")
    assert found[1].startswith("a.yaml:2:5: models[0].path: is missing")
    assert heads(write("api: {}\n"))[0].startswith("a.yaml:1:1: models: is missing")


@pytest.mark.parametrize("text", ["models: []", "models: {}", "models: 3", "models: [3]", "models: [[]]"])
def test_models_that_are_no_list_of_models_are_refused(write: Write, text: str) -> None:
    assert heads(write(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("  \n\n", "is empty"),
        ("# nothing\n", "holds no value, only comments"),
        ("- a\n- b\n", "a.yaml:1:1: expected keys and values"),
        ("just words", "a.yaml:1:1: expected keys and values"),
        ("models: [\n", "not valid YAML"),
        ("a: b: c\n", "a.yaml:1:5: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: not valid YAML"),
        ("a: \x07\n", "not valid YAML"),
        ("\tmodels: 1\n", "a.yaml:1:1: not valid YAML"),
        ("models: !!python/object:os.system x\n", "tags such as"),
        ("models: !local x\n", "tags such as !local are not supported"),
        ("models: " + "[" * 60 + "]" * 60, "nested too deeply"),
        ("? [a]\n: 1\nmodels: 1\n", "expected a key, found a list"),
        ("models: *nothing\n", "not valid YAML"),
    ],
)
def test_text_that_is_no_configuration_is_refused_with_its_place(write: Write, text: str, expected: str) -> None:
    assert any(expected in problem for problem in problems(write(text)))


def test_aliases_work_and_merge_keys_say_that_they_do_not(write: Write) -> None:
    text = "models:\n  - {name: a, path: org/a, engine: &e {threads: 2}}\n  - {name: b, path: org/b, engine: *e}\n"
    assert load_config(write(text)).models[1].engine.threads == 2
    assert "merge keys are not supported" in heads(write(MINIMAL + "api: {<<: {port: 1}}\n"))[0]


def test_aliases_cannot_blow_up(write: Write) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    found = heads(write("\n".join([*lines, "models: *a39"])))
    assert any("models[0]: expected keys and values, found a list" in problem for problem in found)


def test_a_file_that_is_not_utf8_is_told_its_byte(write: Write, tmp_path: Path) -> None:
    path = write(MINIMAL)
    path.write_bytes(b"models:\n  - name: caf\xe9\n")
    assert heads(path) == ["a.yaml:2:14: not UTF-8: byte 0xe9; save the file as UTF-8"]


def test_a_byte_order_mark_is_no_problem(write: Write) -> None:
    assert load_config(write("\ufeff" + MINIMAL)).models[0].name == "m"


def test_files_that_cannot_be_read_say_why(write: Write, tmp_path: Path) -> None:
    assert heads(tmp_path / "none.yaml")[0] == "none.yaml: no such file; write one after config.example.yaml"
    with pytest.raises(ConfigError, match="is a directory"):
        load_config(tmp_path)
    assert "larger than" in heads(write(MINIMAL + "#" * 1024 * 1024))[0]


def test_control_characters_are_not_echoed(write: Write) -> None:
    (problem,) = problems(write(MINIMAL + "api: {prt: 1} # \u202e\n"))
    assert "\u202e" not in problem


def test_names_must_differ(write: Write) -> None:
    (problem,) = heads(write("models: [{name: a, path: org/a}, {name: a, path: org/b}]"))
    assert "models[1].name: a is models[0] already; names must differ" in problem


def test_two_names_with_one_folder_are_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(model_folder("x")) == 8
    monkeypatch.setattr("aphrodited.config.checks.model_folder", lambda name: "same")
    (problem,) = heads(write("models: [{name: a, path: org/a}, {name: b, path: org/b}]"))
    assert "share a folder name" in problem


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_needs_no_keys(write: Write, host: str) -> None:
    assert load_config(write(MINIMAL + f"api: {{host: '{host}'}}")).api.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "'::'", "192.168.0.1", "example.org", "' '", "''"])
def test_beyond_loopback_keys_are_required(write: Write, host: str) -> None:
    assert any(h.startswith("a.yaml:4:13: api.host:") for h in heads(write(MINIMAL + f"api: {{host: {host}}}\n")))


def test_beyond_loopback_keys_or_a_plain_word_suffice(write: Write, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sk-1\n")
    (tmp_path / "keys").chmod(0o600)
    config = load_config(write(MINIMAL + "api: {host: 0.0.0.0, keys_file: keys}"))
    assert config.api.keys_file == str(tmp_path / "keys")
    assert load_config(write(MINIMAL + "api: {host: 0.0.0.0, allow_unauthenticated: true}"))


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [
        (None, 0, "cannot be read: No such file or directory"),
        (b"", 0o600, "holds no key"),
        (b"# comment\n\n", 0o600, "holds no key"),
        (b"\xff\xfe", 0o600, "is not UTF-8 text"),
        (b"key\n", 0o666, "every user of this host can write"),
    ],
)
def test_a_keys_file_must_hold_keys(
    write: Write, tmp_path: Path, content: bytes | None, mode: int, expected: str
) -> None:
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
        (tmp_path / "keys").chmod(mode)
    (problem,) = heads(write(MINIMAL + "api:\n  keys_file: keys\n"))
    assert problem.startswith("a.yaml:5:14: api.keys_file: ")
    assert expected in problem


def test_a_keys_file_that_is_a_directory_is_refused(write: Write) -> None:
    assert "is not a file" in heads(write(MINIMAL + "api:\n  keys_file: .\n"))[0]


def test_a_credential_is_found_where_systemd_puts_it(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "api-keys").write_text("sk-1\n")
    config = load_config(write(MINIMAL + "api: {keys_file: 'credential:api-keys'}"))
    assert config.api.keys_file == str(tmp_path / "credentials" / "api-keys")


def test_ports_must_differ_unless_both_are_free(write: Write) -> None:
    (problem,) = heads(write(MINIMAL + "api: {port: 5}\nmonitor: {port: 5}\n"))
    assert "monitor.port: 5 is the API's port too" in problem
    assert load_config(write(MINIMAL + "api: {port: 0}\nmonitor: {port: 0}\n"))


def test_a_problem_does_not_cause_another(write: Write) -> None:
    text = MINIMAL + "api: {host: 0.0.0.0, keys_file: 3, port: x}\nmonitor: {port: 2242}\n"
    assert [h.split(": ")[1] for h in heads(write(text))] == ["api.keys_file", "api.port"]


@pytest.mark.parametrize(("text", "standby", "num"), [("auto", "auto", 0), ("0", 0, 0), ("4", 4, 4)])
def test_standby_is_a_number_or_left_to_the_daemon(write: Write, text: str, standby: int | str, num: int) -> None:
    (model,) = load_config(write(MINIMAL + f"    standby: {text}\n")).models
    assert (model.standby, model.num_standbys) == (standby, num)


def test_more_than_four_standbys_are_refused(write: Write) -> None:
    assert "standby" in heads(write(MINIMAL + "    standby: 5\n"))[0]


def test_a_missing_model_file_is_not_a_problem_of_the_file(write: Write, tmp_path: Path) -> None:
    config = load_config(write("models: [{name: m, path: gone/model.gguf}]"))
    assert config.models[0].path == str(tmp_path / "gone/model.gguf")


@pytest.mark.parametrize("path", ["org/model", "gpt2"])
def test_a_hub_id_stays_what_it_is(write: Write, path: str) -> None:
    assert load_config(write(f"models: [{{name: m, path: {path}}}]")).models[0].path == path


@pytest.mark.parametrize("path", ["./org/model", "../m", "a/b/c", "org/m.gguf", "/abs/m", "there/model"])
def test_a_path_is_made_absolute_from_the_file(write: Write, tmp_path: Path, path: str) -> None:
    (tmp_path / "there" / "model").mkdir(parents=True)
    expected = os.path.normpath(tmp_path / path)
    assert load_config(write(f"models: [{{name: m, path: {path}}}]")).models[0].path == expected


def test_a_tilde_is_the_home_folder(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert load_config(write("models: [{name: m, path: ~/m}]")).models[0].path == "/somewhere/m"


def test_overrides_win_and_their_paths_start_at_the_working_directory(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = write(MINIMAL + "    engine: &e {threads: 2}\napi: {port: 1}\npaths:\n")
    loaded = load(
        path,
        ["api.port=7", "models[0].path=./m.gguf", "paths.state_dir=s", "recovery.probe_minutes=[1, 2]", "mq.input_hwm=99"],
    )
    config = loaded.config
    assert config.api.port == 7
    assert config.models[0].path == str(tmp_path / "here/m.gguf")
    assert config.paths.state_dir == str(tmp_path / "here/s")
    assert config.recovery.probe_minutes == (1.0, 2.0)
    assert config.mq.input_hwm == 99
    assert loaded.origins["api.port"] == "--set api.port=7"
    assert loaded.origins["models[0].name"] == f"{path}:2:11"
    assert "api.workers" not in loaded.origins


def test_an_override_of_a_shared_section_changes_one_place(write: Write) -> None:
    text = "models:\n  - {name: a, path: org/a, engine: &e {threads: 2}}\n  - {name: b, path: org/b, engine: *e}\n"
    config = load_config(write(text), ["models[1].engine.threads=3"])
    assert [model.engine.threads for model in config.models] == [2, 3]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("api.port", "--set api.port: expected key=value"),
        ("=3", "expected a key before the ="),
        ("api..port=3", "expected a key such as api.port"),
        ("[0].x=3", "expected a key such as api.port"),
        ("models[7].path=x", "models[7].path: the file has only 1 of these"),
        ("api[0]=x", "there is no list to take [0] of"),
        ("models[0].name.x=3", "x has no place here"),
        ("api.prt=3", "--set api.prt=3: api.prt: unknown key; did you mean port?"),
        ("api.port=x", "--set api.port=x: api.port: expected an integer"),
        ("api.port=", "api.port: expected an integer from 0 to 65535, found the text ''"),
        ("api.port=[", "--set api.port=[: not valid YAML"),
        ("api={port: 3", "not valid YAML"),
    ],
)
def test_a_wrong_override_is_refused(write: Write, override: str, expected: str) -> None:
    assert expected in heads(write(MINIMAL), override)[0]


def test_two_files_get_two_sets_of_directories(write: Write) -> None:
    first, second = load_config(write(MINIMAL)), load_config(write(MINIMAL, "b.yaml"))  # type: ignore[call-arg]
    assert daemon_paths(first).runtime_dir != daemon_paths(second).runtime_dir
    assert daemon_paths(first).state_dir != daemon_paths(second).state_dir


def test_a_file_is_the_same_however_it_is_reached(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(MINIMAL)
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = {str(load_config(p).paths.runtime_dir) for p in (path, Path("a.yaml"), tmp_path / "link" / ".." / path)}
    assert len(found) == 1


def test_directories_come_from_the_environment_unless_given(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(MINIMAL)
    paths = daemon_paths(load_config(path))
    assert paths.runtime_dir.parent == Path("/tmp")
    assert paths.state_dir.parent == tmp_path / "state-home"
    assert paths.log_dir == paths.state_dir / "log"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/var/tmp")
    assert daemon_paths(load_config(path)).runtime_dir.parent == Path("/var/tmp")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/aphrodited:/run/other")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/aphrodited")
    monkeypatch.setenv("LOGS_DIRECTORY", "/var/log/aphrodited")
    paths = daemon_paths(load_config(path))
    assert [str(p) for p in (paths.runtime_dir, paths.state_dir, paths.log_dir)] == [
        "/run/aphrodited",
        "/var/lib/aphrodited",
        "/var/log/aphrodited",
    ]
    given = load_config(write(MINIMAL + "paths: {runtime_dir: r, log_dir: l, state_dir: s}\n"))
    assert daemon_paths(given).runtime_dir == tmp_path / "r"


def test_the_systems_own_file_has_the_systems_directories() -> None:
    paths = with_directories(PathsConfig(), SYSTEM_CONFIG, lambda _key: Path("/"), {})
    assert paths == PathsConfig("/run/aphrodited", "/var/log/aphrodited", "/var/lib/aphrodited")


def test_a_runtime_directory_too_long_for_sockets_is_refused(write: Write) -> None:
    (problem,) = heads(write(MINIMAL + f"paths: {{runtime_dir: /tmp/{'x' * 90}}}\n"))
    assert "too long for unix sockets" in problem


def test_a_directory_that_is_a_file_is_refused(write: Write) -> None:
    (problem,) = heads(write(MINIMAL + "paths: {state_dir: a.yaml, log_dir: l}\n"))
    assert "paths.state_dir" in problem


def test_paths_are_found_while_the_rest_is_wrong(write: Write, tmp_path: Path) -> None:
    path = write("models: nonsense\npaths: {runtime_dir: r}\n")
    assert find_paths(path).runtime_dir == tmp_path / "r"
    with pytest.raises(ConfigError, match="unknown key"):
        find_paths(write("paths: {run_dir: r}\n"))


def test_the_effective_configuration_survives_the_trip_and_is_private(write: Write, tmp_path: Path) -> None:
    config = load_config(write(MINIMAL + "recovery: {probe_minutes: [1]}\n"))
    path = tmp_path / "effective.json"
    write_effective(config, path)
    write_effective(config, path)
    assert read_effective(path) == config
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.yaml", "effective.json"]


def test_an_effective_configuration_that_is_none_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_effective(tmp_path / "none")
    (tmp_path / "bad").write_text('{"models": 3}')
    with pytest.raises(ConfigError, match="not a configuration of this version"):
        read_effective(tmp_path / "bad")


def test_paths_of_a_configuration_that_was_not_loaded_are_refused() -> None:
    with pytest.raises(ValueError, match="load_config"):
        daemon_paths(Config(models=()))

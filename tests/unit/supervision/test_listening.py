import os
import socket

import pytest

from aphrodited.config.schema import ApiConfig
from aphrodited.errors import ConfigError
from aphrodited.supervision.listening import (
    PortInUseError,
    address_of,
    check_exposure,
    open_listener,
    url_of,
)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_bound_socket_listens_and_is_inherited(host):
    with open_listener(ApiConfig(host=host, port=0), {}) as listener:
        assert listener.get_inheritable()
        _, port = address_of(listener)
        with socket.create_connection((host, port), timeout=5):
            pass


def test_a_taken_port_is_said_after_the_time_to_retry():
    with open_listener(ApiConfig(port=0), {}) as first:
        port = address_of(first)[1]
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is in use"):
            open_listener(ApiConfig(port=port), {}, retry_s=0.1)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_ours_is_the_operators_to_mend(host):
    with pytest.raises(ConfigError, match="api"):
        open_listener(ApiConfig(host=host, port=0), {})


def test_sockets_passed_to_somebody_else_are_left_alone_and_forgotten():
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x"}
    with open_listener(ApiConfig(port=0), environment) as listener:
        assert address_of(listener)[1] > 0
    assert environment == {}


def test_more_than_one_passed_socket_is_refused():
    with pytest.raises(ConfigError, match="passed 2 sockets"):
        open_listener(ApiConfig(), {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})


@pytest.mark.parametrize(
    ("host", "is_refused"), [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True), ("fe80::1%lo", True)]
)
def test_an_open_port_needs_keys(host, is_refused):
    check_exposure(ApiConfig(allow_unauthenticated=True), host)
    check_exposure(ApiConfig(keys_file="/keys"), host)
    if is_refused:
        with pytest.raises(ConfigError, match="without API keys"):
            check_exposure(ApiConfig(), host)
    else:
        check_exposure(ApiConfig(), host)


def test_urls_are_usable_from_this_machine():
    assert url_of("127.0.0.1", 1) == "http://127.0.0.1:1"
    assert url_of("0.0.0.0", 1) == "http://127.0.0.1:1"
    assert url_of("::", 1) == "http://[::1]:1"

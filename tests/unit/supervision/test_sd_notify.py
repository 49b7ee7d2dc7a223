import os
import socket

import pytest

from aphrodited.supervision.sd_notify import ServiceManager


@pytest.fixture(params=["path", "abstract"])
def listening(request, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        name = str(tmp_path / "notify") if request.param == "path" else f"@aphrodited-test-{os.getpid()}"
        receiver.bind(name.replace("@", "\0"))
        receiver.setblocking(False)
        yield name, receiver


def received(receiver):
    messages = []
    while True:
        try:
            messages.append(receiver.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_messages_are_those_of_sd_notify(listening):
    name, receiver = listening
    manager = ServiceManager(name)
    assert manager.is_present
    manager.status("starting")
    manager.status("starting")
    manager.ready("a serves")
    manager.alive()
    manager.extend_timeout(1.5)
    manager.stopping("two\nlines")
    assert received(receiver) == [
        "STATUS=starting",
        "READY=1\nSTATUS=a serves",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=1500000",
        "STOPPING=1\nSTATUS=two lines",
    ]


def test_the_environment_is_cleared_for_the_children():
    environment = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    manager = ServiceManager.from_environment(environment)
    assert environment == {"HOME": "/"}
    assert manager.watchdog_s == 60.0


def test_a_watchdog_meant_for_another_process_is_not_ours():
    assert ServiceManager.from_environment({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_s == 0.0


def test_without_a_service_manager_nothing_happens():
    manager = ServiceManager.from_environment({})
    assert not manager.is_present
    manager.ready("a serves")


def test_a_manager_that_does_not_read_blocks_nobody(listening):
    manager = ServiceManager(listening[0])
    for _ in range(5000):
        manager.alive()

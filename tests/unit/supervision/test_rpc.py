import socket
import threading
import xmlrpc.client

import pytest

from aphrodited.supervision.rpc import SupervisorClient, SupervisorDownError, SupervisorRefusedError


class FakeSupervisorSocket:
    """Answers each connection with the next prepared body, and keeps what was asked."""

    def __init__(self, path, *bodies):
        self.asked = []
        self._bodies = bodies
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        for body in self._bodies:
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rb") as file:
                length = 0
                while (line := file.readline().strip()) != b"":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                self.asked.append(xmlrpc.client.loads(file.read(length)))
                head = f"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)

    def close(self):
        self._thread.join(10)
        self._listener.close()


@pytest.fixture
def serve(tmp_path):
    made = []

    def start(*values):
        bodies = [
            xmlrpc.client.dumps(value if isinstance(value, xmlrpc.client.Fault) else (value,), methodresponse=True).encode()
            for value in values
        ]
        made.append(FakeSupervisorSocket(tmp_path / "s", *bodies))
        return made[0], SupervisorClient(tmp_path / "s", timeout_s=5)

    yield start
    for fake in made:
        fake.close()


RAW = {
    "name": "api-0",
    "group": "api",
    "statename": "RUNNING",
    "pid": 7,
    "start": 100,
    "stop": 90,
    "now": 112,
    "exitstatus": 0,
    "spawnerr": "",
}


def test_processes_are_told_with_their_uptime(serve):
    _, client = serve([RAW, {**RAW, "pid": 0}])
    running, dead = client.processes()
    assert (running.name, running.statename, running.pid, running.uptime_s) == ("api-0", "RUNNING", 7, 12)
    assert dead.uptime_s == 0


def test_programs_are_named_with_their_group(serve):
    fake, client = serve(True, True, True, 4711)
    client.stop("api-0")
    client.start("engine-0a1b2c3d-0")
    client.signal("monitor", 12)
    assert client.pid() == 4711
    assert fake.asked == [
        (("api:api-0", True), "supervisor.stopProcess"),
        (("engines:engine-0a1b2c3d-0", True), "supervisor.startProcess"),
        (("monitor:monitor", "USR2"), "supervisor.signalProcess"),
        ((), "supervisor.getPID"),
    ]


def test_a_restart_of_what_does_not_run_is_a_start(serve):
    fake, client = serve(xmlrpc.client.Fault(70, "NOT_RUNNING: api:api-0"), True)
    client.restart("api-0")
    assert [method for _, method in fake.asked] == ["supervisor.stopProcess", "supervisor.startProcess"]


def test_a_refusal_is_a_sentence(serve):
    _, client = serve(xmlrpc.client.Fault(10, "BAD_NAME"), xmlrpc.client.Fault(6, "SHUTDOWN_STATE"))
    with pytest.raises(SupervisorRefusedError, match="there is no program api-9"):
        client.start("api-9")
    with pytest.raises(SupervisorRefusedError, match="the daemon is stopping"):
        client.shutdown()


def test_nobody_there_is_told_with_the_place(tmp_path):
    with pytest.raises(SupervisorDownError, match=f"no answer from the daemon on {tmp_path}/s"):
        SupervisorClient(tmp_path / "s").processes()


def test_somebody_who_does_not_answer_in_time_is_down(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with pytest.raises(SupervisorDownError, match="timed out"):
            SupervisorClient(tmp_path / "s", timeout_s=0.1).processes()

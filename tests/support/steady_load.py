"""Clients that ask without a pause, each on one connection for as long as the server keeps it, and check every answer."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from tests.support.daemons import wait_until


class SteadyLoad:
    """num_clients threads; every other one streams. failures: whatever was not the expected answer."""

    def __init__(self, port: int, num_clients: int, bodies: list[dict[str, Any]]) -> None:
        self.failures: list[str] = []
        self.num_answered = 0
        self._port = port
        self._bodies = bodies
        with closing(self._connect()) as connection:
            self._expected = [self._ask(connection, body) for body in bodies]
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(num_clients)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, num_answers: int, timeout_s: float = 30.0) -> None:
        """Until so many more were answered."""
        goal = self.num_answered + num_answers
        wait_until(lambda: self.num_answered >= goal or self.failures, timeout_s, f"{num_answers} answers")

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)

    def _run(self, client: int) -> None:
        connection = self._connect()  # http.client opens it again by itself after `Connection: close`
        turn = client
        while not self._stop.is_set():
            number = turn % len(self._bodies)
            turn += 1
            try:
                answer = self._ask(connection, self._bodies[number])
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"client {client}, body {number}: {type(error).__name__}: {error}")
                connection.close()
                continue
            with self._lock:
                self.num_answered += 1
            if answer != self._expected[number]:
                self.failures.append(f"client {client}, body {number}: {answer} instead of {self._expected[number]}")
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, body: dict[str, Any]) -> tuple[int, str]:
        """Status and text of the answer, or the whole body of an error."""
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            return response.status, text
        if not body.get("stream"):
            return 200, json.loads(text)["choices"][0]["text"]
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        if events[-1] != "[DONE]" or any('"error"' in event for event in events):
            return 200, text
        return 200, "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


@contextmanager
def steady_load(port: int, num_clients: int, bodies: list[dict[str, Any]]) -> Iterator[SteadyLoad]:
    load = SteadyLoad(port, num_clients, bodies)
    try:
        yield load
    finally:
        load.stop()

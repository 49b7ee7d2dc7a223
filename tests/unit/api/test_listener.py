import asyncio
import errno
import socket

from aphrodited.api import listener as module
from aphrodited.api.listener import Listener
from tests.support.waiting import wait_until


class Greeter(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")


class ShortOfDescriptors:
    """A listening socket whose accept fails as in a process with too many open files, some times."""

    def __init__(self, real, num_failures):
        self._real = real
        self.num_failures = num_failures

    def __getattr__(self, name):
        return getattr(self._real, name)

    def accept(self):
        if self.num_failures:
            self.num_failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._real.accept()


async def read(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    greeting = await asyncio.wait_for(reader.readexactly(5), 5)
    writer.close()
    return greeting


async def test_it_accepts_until_it_is_stopped_and_leaves_the_socket_to_others():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        first = Listener(listening, Greeter)
        first.start()
        assert await read(port) == b"hello"
        first.stop()
        waiting = asyncio.create_task(read(port))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        second = Listener(listening, Greeter)
        second.start()
        assert await waiting == b"hello"
        second.stop()


async def test_stopping_during_the_break_after_a_connection_stops_for_good(monkeypatch):
    monkeypatch.setattr(module, "BREAK_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = Listener(listening, Greeter)
        accepting.start()
        await read(listening.getsockname()[1])
        accepting.stop()
        waiting = asyncio.create_task(read(listening.getsockname()[1]))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        waiting.cancel()


async def test_it_pauses_without_file_descriptors_and_goes_on_later(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as real:
        listening = ShortOfDescriptors(real, num_failures=2)
        accepting = Listener(listening, Greeter)
        accepting.start()
        assert await read(real.getsockname()[1]) == b"hello"
        await wait_until(lambda: listening.num_failures == 0)
        accepting.stop()

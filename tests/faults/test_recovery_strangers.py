"""Garbage on every socket and bad requests of every kind: refused or ignored, and every process lives on."""

import http.client
import json
import os
import random
import socket
import time

import pytest
import zmq

from aphrodited.mq.codec import encode
from aphrodited.mq.endpoints import read_current
from aphrodited.mq.messages import AbortRequest, Attach, Hello, StatsRequest, Submit
from aphrodited.paths import MAX_SOCKET_PATH
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import SamplingParams
from tests.support.daemons import wait_until
from tests.support.real_daemon import RealDaemon, real_daemon

SEED = 20240229
KINDS = {"input": zmq.PUSH, "output": zmq.DEALER, "data": zmq.DEALER, "health": zmq.SUB}


@pytest.fixture(scope="module")
def daemon():
    with real_daemon() as daemon:
        yield daemon


@pytest.fixture
def unchanged(daemon):
    """Whatever the test does, every process stays the one it was, and a request is still answered."""
    before = daemon.pids()
    yield daemon
    assert daemon.pids() == before
    assert daemon.complete()[0] == 200
    assert daemon.pids() == before


def junk(count):
    """Random bytes, cut messages, wrong types, wrong numbers of frames, deep nesting."""
    source = random.Random(SEED)
    request = GenerateRequest("r", [1, 2, 3], SamplingParams())
    whole = encode(Submit("nobody", 1, request))
    yield [b""]
    yield [b"\x81" * 5000]
    yield [b"\xdd\xff\xff\xff\xff"]
    yield [encode({"tag": "submit"})]
    yield [encode(["unknown", 1, 2])]
    yield [encode(["submit", "nobody", "one", None])]
    yield [encode(Submit("nobody", -5, request))]
    yield [encode(AbortRequest("nobody", 99)), encode(AbortRequest("nobody", 99))]
    yield [encode(Attach("nobody", 2**40, 1))]
    yield [encode(Hello(999, "x" * 100_000))]
    yield [encode(StatsRequest())] * 3
    for cut in range(0, len(whole), 3):
        yield [whole[:cut]]
    for _ in range(count):
        yield [source.randbytes(source.randrange(300)) for _ in range(source.randrange(1, 4))]


@pytest.mark.parametrize("kind", KINDS)
def test_junk_on_an_engine_socket(unchanged, kind):
    paths = unchanged.paths.model("tiny")
    current = read_current(paths)
    context = zmq.Context()
    stranger = context.socket(KINDS[kind])
    stranger.connect(paths.endpoint(current.generation, kind))
    try:
        if kind == "health":  # a subscriber only subscribes; this is all it can say
            for frames in junk(50):
                stranger.subscribe(frames[0])
        else:
            for frames in junk(200):
                stranger.send_multipart(frames)
        time.sleep(0.2)
    finally:
        stranger.close(linger=1000)
        context.term()


def test_junk_on_the_events_socket(unchanged):
    context = zmq.Context()
    stranger = context.socket(zmq.XSUB)
    stranger.connect(unchanged.paths.events_endpoint)
    for frames in junk(50):
        stranger.send_multipart(frames)
    stranger.close(linger=1000)
    context.term()


def socket_files(daemon: RealDaemon) -> list[str]:
    return sorted(str(path) for path in daemon.paths.runtime_dir.rglob("*") if path.is_socket())


def test_bytes_that_speak_no_protocol_at_all_on_every_unix_socket(unchanged):
    source = random.Random(SEED)
    files = socket_files(unchanged)
    assert len(files) >= 7  # four of the engine, events, admin, supervisor
    for file in files:
        assert len(os.fsencode(file)) <= MAX_SOCKET_PATH
        for size in (0, 1, 64, 5000):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(file)
                stranger.settimeout(5)
                try:
                    stranger.sendall(source.randbytes(size))
                except BrokenPipeError:
                    continue


def test_bytes_that_speak_no_protocol_at_all_on_every_port(unchanged):
    source = random.Random(SEED)
    for port in (unchanged.port, unchanged.monitor_port):
        for text in (b"", b"\0" * 100, b"GET", b"GET / HTTP/9.9\r\n\r\n", source.randbytes(3000)):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                stranger.sendall(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": []},
        {"prompt": ""},
        {"prompt": [10**9]},
        {"prompt": [-1]},
        {"prompt": {"a": 1}},
        {"prompt": [1] * 5000},
        {"max_tokens": "many"},
        {"max_tokens": -1},
        {"max_tokens": 10**9},
        {"temperature": "hot"},
        {"temperature": float("nan")},
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": float("inf")},
        {"n": 1000},
        {"n": 0},
        {"logprobs": 10**6},
        {"stop": 7},
        {"stop_token_ids": [10**9]},
        {"seed": "s"},
        {"stream": "yes"},
        {"min_tokens": 50},
    ],
    ids=str,
)
def test_a_bad_request_is_a_clear_400(unchanged, fields):
    status, answer = unchanged.complete(**{"prompt": "hello", **fields})
    assert status == 400
    assert answer["error"]["message"]
    assert answer["error"]["code"] in ("invalid_request_error", "context_length_exceeded")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":' * 20_000], ids=lambda body: str(body[:5]))
def test_a_body_that_is_no_request_is_a_clear_400(unchanged, body):
    connection = http.client.HTTPConnection("127.0.0.1", unchanged.port, timeout=20)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 400
    assert json.loads(answer.read())["error"]["code"] == "invalid_request_error"
    connection.close()


def test_what_was_refused_holds_nothing(daemon):
    wait_until(lambda: daemon.engine().num_running == 0, what="an idle engine")
    assert daemon.status().models[0].kv_blocks_used == 0
    assert daemon.deaths() == []

import io
import os

import pytest

from aphrodited.grammar.frames import PipeEndedError, frame, read_frame, receive_frame


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize("content", [b"", b"a", b"x" * 40_000])
def test_what_was_framed_is_read(pipe, content):
    assert read_frame(io.BytesIO(frame(content))) == content
    os.write(pipe[1], frame(content))
    assert receive_frame(pipe[0], 5) == content


def test_frames_follow_each_other():
    stream = io.BytesIO(frame(b"one") + frame(b"") + frame(b"two"))
    assert [read_frame(stream) for _ in range(4)] == [b"one", b"", b"two", None]


def test_nothing_in_time_is_an_error(pipe):
    os.write(pipe[1], frame(b"long")[:-1])
    with pytest.raises(PipeEndedError, match="in time"):
        receive_frame(pipe[0], 0.01)


def test_the_end_of_the_pipe_is_an_error():
    read_end, write_end = os.pipe()
    os.close(write_end)
    with pytest.raises(PipeEndedError, match="ended"):
        receive_frame(read_end, 5)
    os.close(read_end)

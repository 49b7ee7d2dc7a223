import os

from aphrodited.supervision.announce import Announcer


def test_a_line_says_who_speaks():
    read_fd, write_fd = os.pipe()
    Announcer(write_fd)("ready")
    assert os.read(read_fd, 100) == b"aphrodited: ready\n"
    os.close(read_fd)
    os.close(write_fd)


def test_a_stalled_reader_costs_lines_and_no_time():
    read_fd, write_fd = os.pipe()
    announce = Announcer(write_fd)
    for _ in range(100):
        announce("x" * 2000)
    assert announce.num_left_out > 50
    text = ""
    while len(text) < (100 - announce.num_left_out) * 2013:
        text += os.read(read_fd, 65536).decode()
    left_out = announce.num_left_out
    announce("back")
    assert os.read(read_fd, 1000).decode() == (
        f"aphrodited: {left_out} lines were left out here\naphrodited: back\n"
    )
    os.close(read_fd)
    announce("nobody reads")  # no SIGPIPE, no exception
    os.close(write_fd)

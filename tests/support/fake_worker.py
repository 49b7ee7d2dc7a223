"""A worker that only pretends: it keeps a page, answers HTTP with one line, and misbehaves as a file tells it.

The file `<state_dir>/behaviour/<program>` holds words: `crash` exits 70 at once, `config` exits 78, `work` counts a
finished request, `deaf` ignores SIGTERM, `still` stops moving, `child` leaves a process in the group.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time

from aphrodited.page import PageWriter, Phase
from aphrodited.supervision.launcher import parse_options, read_config

options = parse_options(sys.argv[1:])
paths, config = read_config(options.runtime_dir)
try:
    behaviour = (paths.state_dir / "behaviour" / options.program).read_text().split()
except FileNotFoundError:
    behaviour = []

print(f"life of {options.program} begins", flush=True)
page = PageWriter(paths.page(options.program))
if "crash" in behaviour:
    sys.exit(70)
if "config" in behaviour:
    page.update(phase=Phase.FAILED, message="model.gguf: no such file")
    sys.exit(78)
if "child" in behaviour:
    subprocess.Popen(["sleep", "600"])
if "deaf" in behaviour:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

listener = socket.socket(fileno=options.listen_fd) if options.listen_fd is not None else None
page.update(phase=Phase.READY, num_finished=1 if "work" in behaviour else 0)
while True:
    if "still" not in behaviour:
        page.tick()
    if listener is None:
        time.sleep(0.05)
        continue
    if not select.select([listener], [], [], 0.05)[0]:
        continue
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        continue
    with connection:
        connection.recv(65536)
        connection.sendall(f"HTTP/1.0 200 OK\r\n\r\n{options.program} {os.getpid()}\n".encode())

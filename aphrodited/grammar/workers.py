"""Workers: a few threads that run tasks in order, with stacks deep enough for what grammars nest.

Unlike a ThreadPoolExecutor's, they never hold up the end of the process. Knows no grammar.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

STACK_SIZE = 512 * 1024 * 1024
"""Bytes of address space; memory is taken as far as the stack is used. A chain of 15,000 rules needs 170 MB."""

_stack_size_lock = threading.Lock()

Task = Callable[[], None]


class Workers:
    """Threads that start with the first task. Tasks must not raise."""

    def __init__(self, name: str, num_threads: int, max_tasks: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._tasks: queue.Queue[Task | None] = queue.Queue(maxsize=max_tasks)
        self._started = False

    def submit(self, task: Task) -> None:
        """Run a task when its turn comes. Raises queue.Full if max_tasks are waiting."""
        if not self._started:
            self._started = True
            self._start()
        self._tasks.put_nowait(task)

    def close(self) -> None:
        """Start no further task. Does not wait for those that run."""
        while True:
            try:
                self._tasks.get_nowait()
            except queue.Empty:
                break
        for _ in range(self._num_threads if self._started else 0):
            self._tasks.put_nowait(None)

    def _start(self) -> None:
        with _stack_size_lock:  # it holds for all threads that start meanwhile
            before = threading.stack_size(STACK_SIZE)
            try:
                for index in range(self._num_threads):
                    threading.Thread(target=self._run, name=f"{self._name}-{index}", daemon=True).start()
            finally:
                threading.stack_size(before)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

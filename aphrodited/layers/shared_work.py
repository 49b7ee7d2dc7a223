"""Work that threads of one kernel share without waiting for each other more than they must.

A task is cut into chunks. Whoever has nothing to do claims the next one; a task is done when all of its chunks are, whoever
computed them. So a thread that the system does not run holds up nothing but the chunk it has claimed, and a single thread
gets through everything by itself. A wait spins for some microseconds, which is what tasks of one step are apart, and then
lets others have the core. Knows no task.

Each thread begins with a share of its own, chunks that follow each other, and goes on with what is left of the others': memory
is read fastest by threads that each go through a stretch of it. Two that took turns, 36 KiB each, read int8 weights at 25 to 28
GB/s, and at 30 to 41 in halves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from aphrodited.layers.kernels import Longs, compile_kernel

LINE = 8
"""Numbers in a cache line. Each counter has one of its own."""

FINISHED, CLAIMED = 0, LINE  # where a task's counters are: of finished chunks, and of those claimed of the first share

_SPINS = 1000  # of 20 to 60 ns each
_INT, _WORD_BYTES = ir.IntType(64), 8
_IS_X86 = binding.get_process_triple().startswith("x86_64")


def _increase(typing_context: Any, counters: Any, index: Any) -> tuple[Any, Callable[..., Any]]:
    """increase(counters, index): add one to the number at a flat index; returns what was there before. What was written before is seen by whoever reads it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", _place(context, builder, signature, arguments), _INT(1), "acq_rel")

    return types.int64(counters, types.intp), generate


def _read(typing_context: Any, counters: Any, index: Any) -> tuple[Any, Callable[..., Any]]:
    """read(counters, index): the newest number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature, arguments), "acquire", _WORD_BYTES)

    return types.int64(counters, types.intp), generate


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    counters = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(counters.data, [arguments[1]])


def _relax(typing_context: Any) -> tuple[Any, Callable[..., Any]]:
    """relax(): tell the CPU that this is a loop that waits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _IS_X86:
            pause = builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), ir.FunctionType(ir.VoidType(), []))
            builder.call(pause, [])
        return context.get_dummy_value()

    return types.void(), generate


def _give_way(typing_context: Any) -> tuple[Any, Callable[..., Any]]:
    """give_way(): let another thread have this core, if one wants it. See sched_yield(2)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        function = cgutils.get_or_insert_function(builder.module, kind, "sched_yield")  # type: ignore[no-untyped-call]
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


increase: Callable[..., int] = intrinsic(_increase)
read: Callable[..., int] = intrinsic(_read)
relax: Callable[..., None] = intrinsic(_relax)
give_way: Callable[..., None] = intrinsic(_give_way)


def new_counters(num_tasks: int, num_shares: int) -> Longs:
    """Counters of tasks that nobody has begun: [num_tasks, 1 + num_shares, LINE]."""
    return np.zeros((num_tasks, 1 + num_shares, LINE), np.int64)


def _claim(counters: Longs, own: int, num_chunks: int) -> int:
    """A chunk that is the caller's now, num_chunks if none is left. counters: of the task.  own: the share to begin with."""
    num_shares = counters.shape[0] - 1
    for i in range(num_shares):
        share = (own + i) % num_shares
        start, end = num_chunks * share // num_shares, num_chunks * (share + 1) // num_shares
        claimed = CLAIMED + share * LINE
        if start + read(counters, claimed) < end:
            chunk: int = start + increase(counters, claimed)
            if chunk < end:
                return chunk
    return num_chunks


def _finish(counters: Longs) -> None:
    """One claimed chunk is done."""
    increase(counters, FINISHED)


def _await_all(counters: Longs, num_chunks: int) -> None:
    """Wait until all chunks are done, and see what was written for them."""
    spins = 0
    while read(counters, FINISHED) < num_chunks:
        if spins < _SPINS:
            spins += 1
            relax()
        else:
            give_way()


claim = compile_kernel(_claim, set())
finish = compile_kernel(_finish, set())
await_all = compile_kernel(_await_all, set())

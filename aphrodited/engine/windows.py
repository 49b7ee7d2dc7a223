"""How many blocks a sequence needs of which every token sees a window only. Numbers in, numbers out."""

from __future__ import annotations


def least_held(window: int, block_size: int) -> int:
    """Blocks that hold a token and the window - 1 tokens before it, wherever blocks begin."""
    return most_held(window, 1, block_size)


def most_held(window: int, max_chunk: int, block_size: int) -> int:
    """Blocks that hold so many new tokens and the window - 1 tokens before them, wherever blocks begin."""
    return -(-(window - 1 + max_chunk - 1) // block_size) + 1

"""Keeps text that merely looks like a control token apart from the control tokens that a template writes.

A caller's text is masked before it goes through the template: the first character of everything in it that
spells a special token is replaced by a character that nothing else uses. What spells a special token afterwards
was written by the template. A special token that only comes about where a caller's text meets other text
("<|im_" + "end|>") is prevented by masking its beginnings at the end of a text, and its ends at the start. One
that a template writes around a text ("<|" + role + "|>") is the template's.

Knows no template and no token ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from aphrodited.errors import RequestError

_PRIVATE_USE = range(0xF0000, 0xFFFFE)  # plane 15: no character of any script


class SpecialText:
    """The special tokens' texts, ready to be found. Immutable; may be shared by threads."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted({text for text in texts if text}, key=len, reverse=True)
        self._prefixes = {text[:end] for text in self._texts for end in range(1, len(text))}
        self._suffixes = {text[start:] for text in self._texts for start in range(1, len(text))}
        self._longest = max(map(len, self._texts), default=0)
        tree = _tree(self._texts)
        self._begun = re.compile(_begun_pattern(tree)) if tree else None
        self._whole = re.compile(f"({_whole_pattern(tree)})") if tree else None

    def split(self, text: str) -> list[str]:
        """Plain text and special texts in turns: the even places are plain, the odd ones special."""
        return self._whole.split(text) if self._whole else [text]

    def whole_places(self, text: str) -> set[int]:
        """Where special tokens begin in `text`."""
        return {match.start() for match in self._begun.finditer(text)} if self._begun else set()

    def edge_places(self, text: str) -> set[int]:
        """Which characters at its ends, blanks aside, would help what stands around `text` to a special token."""
        places: set[int] = set()
        last, first = len(text.rstrip()), len(text) - len(text.lstrip())
        for length in range(1, min(self._longest, last - first + 1)):
            if text[last - length : last] in self._prefixes:
                places.add(last - length)
            if text[first : first + length] in self._suffixes:
                places.add(first + length - 1)
        return places


class Mask:
    """One conversation's masking: `hide` the callers' values, render, then `reveal` the text."""

    def __init__(self, special: SpecialText, values: Iterable[Any]) -> None:
        self._special = special
        used = {character for text in _strings(values) for character in set(text) if ord(character) in _PRIVATE_USE}
        self._unused = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        self._stand_ins: dict[str, str] = {}

    @property
    def hid_something(self) -> bool:
        return bool(self._stand_ins)

    def hide(self, value: Any) -> Any:
        """The same structure with every string in it masked. (Of keys, which templates go by, not the edges.)"""
        match value:
            case str():
                places = self._special.whole_places(value) | self._special.edge_places(value)
                return self._replace(value, places)
            case dict():
                return {self._hide_key(key): self.hide(item) for key, item in value.items()}
            case list() | tuple():
                return [self.hide(item) for item in value]
            case _:
                return value

    def reveal(self, text: str) -> str:
        """The text with its own characters again."""
        return text.translate({ord(mark): own for own, mark in self._stand_ins.items()})

    def take_mark(self) -> str:
        """A character that no text of this conversation holds."""
        mark = next(self._unused, None)
        if mark is None:
            raise RequestError("the messages use every private-use character there is", param="messages")
        return mark

    def _hide_key(self, key: Any) -> Any:
        return self._replace(key, self._special.whole_places(key)) if isinstance(key, str) else key

    def _replace(self, text: str, places: set[int]) -> str:
        if not places:
            return text
        characters = list(text)
        for place in places:
            characters[place] = self._stand_in(characters[place])
        return "".join(characters)

    def _stand_in(self, character: str) -> str:
        mark = self._stand_ins.get(character)
        if mark is None:
            mark = self._stand_ins[character] = self.take_mark()
        return mark


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield from _strings(key)
                yield from _strings(item)
        case list() | tuple():
            for item in value:
                yield from _strings(item)


_Tree = dict[str, "_Tree"]  # character to what may follow it; "" marks an end


def _tree(texts: Iterable[str]) -> _Tree:
    root: _Tree = {}
    for text in texts:
        node = root
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return root


def _whole_pattern(node: _Tree) -> str:
    """Matches the longest text at a place, in time that does not grow with their number."""
    branches = [re.escape(character) + _whole_pattern(child) for character, child in node.items() if character]
    if len(branches) == 1 and "" not in node:
        return branches[0]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("?" if "" in node else "")


def _begun_pattern(root: _Tree) -> str:
    """Matches the first character of every text, overlapping ones too."""
    return "|".join(f"{re.escape(first)}(?={_whole_pattern(rest)})" for first, rest in root.items())

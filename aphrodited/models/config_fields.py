"""The fields of a model's configuration, whatever file they come from: read one by one, checked, refused with their place.

Knows no field by name.
"""

from __future__ import annotations

from typing import Any

from aphrodited.errors import ModelLoadError

MAX_INTEGER = 2**31 - 1  # far above any size of a model
MAX_NUMBER = 3.4e38  # of float32, in which all is computed


class ConfigFields:
    """The fields of one config, each checked when it is read. `source` names the file in errors, which are ModelLoadErrors."""

    def __init__(self, fields: dict[str, Any], source: str) -> None:
        self.source = source
        self._fields = fields

    def error(self, problem: str) -> ModelLoadError:
        return ModelLoadError(f"{self.source}: {problem}")

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def get(self, name: str) -> Any:
        return self._fields.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer; required unless there is a default."""
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_INTEGER:
            raise self.error(f"{name} is {value!r}, expected a positive integer of at most {MAX_INTEGER}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number; required unless there is a default."""
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_NUMBER:
            raise self.error(f"{name} is {value!r}, expected a positive number of at most {MAX_NUMBER}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{name} is {value!r}, expected true or false")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """An id, a list of ids, or nothing."""
        value = self._fields.get(name)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
            raise self.error(f"{name} is {value!r}, expected a token id or a list of them")
        return tuple(values)

"""Read-only live views, and dataclass introspection for the native value classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any


class LiveMapping(Mapping[Any, Any]):
    """A mapping that shows what a store has now."""

    __slots__ = ("_find", "_items", "_size")

    def __init__(
        self,
        find: Callable[[Any], Any],
        items: Callable[[], Iterable[tuple[Any, Any]]],
        size: Callable[[], int],
    ) -> None:
        self._find, self._items, self._size = find, items, size

    def __getitem__(self, key: Any) -> Any:
        value = self._find(key)
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._items())

    def __len__(self) -> int:
        return self._size()

    def __repr__(self) -> str:
        return repr(dict(self.items()))


class LiveSequence(Sequence[Any]):
    """A sequence that shows what a pool has now."""

    __slots__ = ("_at", "_size")

    def __init__(self, at: Callable[[int], Any], size: Callable[[], int]) -> None:
        self._at, self._size = at, size

    def __getitem__(self, index: Any) -> Any:
        positions = range(self._size())[index]
        if isinstance(positions, int):
            return self._at(positions)
        return [self._at(position) for position in positions]

    def __len__(self) -> int:
        return self._size()


def like_dataclass(cls: type, *fields: str) -> None:
    """Lets `dataclasses.fields`, `replace`, `asdict` and `match` work on a native value class."""
    shape = dataclasses.make_dataclass(cls.__name__, fields, frozen=True)
    for name in ("__dataclass_fields__", "__dataclass_params__", "__match_args__"):
        setattr(cls, name, getattr(shape, name))

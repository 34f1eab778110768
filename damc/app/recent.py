"""What belongs to a browser tab, for as long as it is among the most recently used."""

from __future__ import annotations

__all__ = ["Recent"]

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """A value for each browser tab, by the tab's name; the least recently used go first.

    The page is not told when a tab is closed: a stream of news from every open tab would take one
    of the six connections that a browser opens to a host, and the seventh tab would never load.

    Args:
        most: how many tabs are remembered.

    Example:
        >>> held = Recent[int](2)
        >>> for tab, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        ...     _ = held.put(tab, value)
        >>> held.get("a"), held.get("b"), held.get("c")
        (3, None, 4)
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: OrderedDict[str, T] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, tab: str, value: T) -> T | None:
        """Keeps a value and gives back the one that it replaces, if any."""
        with self._lock:
            before = self._held.pop(tab, None)
            self._held[tab] = value
            while len(self._held) > self.most:
                self._held.popitem(last=False)
        return before

    def get(self, tab: str) -> T | None:
        """The value of a tab, if it is remembered."""
        with self._lock:
            if tab in self._held:
                self._held.move_to_end(tab)
            return self._held.get(tab)

    def pop(self, tab: str) -> T | None:
        """The value of a tab, forgotten."""
        with self._lock:
            return self._held.pop(tab, None)

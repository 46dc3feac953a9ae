"""Statistics as they are handed out: copies that nobody can change."""
from __future__ import annotations

from typing import Any, Dict, NoReturn


class Statistics(Dict[str, Any]):
    """A dict that is read only: a snapshot, not a view. It compares, prints and serialises as a dict does."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError('statistics are a read-only copy; take dict(statistics) to change one')

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> Any:
        return type(self), (dict(self),)

"""Then: what a role adds to a function of its own model, and of no other."""
from __future__ import annotations

import copy
from typing import Any, Callable


class Then:
    """A function that does something more with its result before it returns it.

    A copy of the model that holds it is another role's, and has the function alone.
    """

    def __init__(self, fn: Callable[..., Any], then: Callable[[Any], None]) -> None:
        self._fn = fn
        self._then = then

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._fn(*args, **kwargs)
        self._then(result)
        return result

    def of(self, fn: Callable[..., Any]) -> Then:
        """The same with the result of another function."""
        return Then(self._fn.of(fn) if isinstance(self._fn, Then) else fn, self._then)

    @property
    def innermost(self) -> Callable[..., Any]:
        """The function that all of this was added to."""
        return self._fn.innermost if isinstance(self._fn, Then) else self._fn

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self._fn, memo)

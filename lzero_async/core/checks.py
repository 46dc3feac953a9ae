"""Checks of single values. A check takes a field's name and value, and returns the value or raises ConfigError."""
from __future__ import annotations

import math
import numbers
import re
import threading
from typing import Any, Callable, Mapping, NoReturn, Optional

from .errors import ConfigError

Check = Callable[[str, Any], Any]


def _refuse(name: str, rule: str, value: Any) -> NoReturn:
    raise ConfigError(f'{name} must be {rule}, got {value!r}')


def integer(minimum: int) -> Check:
    """An int, not a bool, a float or a string."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            _refuse(name, f'an int >= {minimum}', value)
        if value < minimum:
            _refuse(name, f'>= {minimum}', value)
        return int(value)

    return check


def number(minimum: float, exclusive: bool = False) -> Check:
    """A finite int or float."""
    rule = f'{">" if exclusive else ">="} {minimum:g}'

    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not _is_finite(value):
            _refuse(name, f'a finite number {rule}', value)
        if value < minimum or (exclusive and value == minimum):
            _refuse(name, rule, value)
        return float(value)

    return check


def seconds(exclusive: bool = False) -> Check:
    """A number of seconds that a thread can wait."""
    at_least = number(0.0, exclusive)

    def check(name: str, value: Any) -> float:
        value = at_least(name, value)
        if value > threading.TIMEOUT_MAX:
            _refuse(name, f'<= {threading.TIMEOUT_MAX:g}', value)
        return float(value)

    return check


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float holds
        return False


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        _refuse(name, 'True or False', value)
    return value


def device(name: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r'cpu|cuda(:\d+)?', value):
        _refuse(name, "'cpu', 'cuda' or 'cuda:N'", value)
    return value


def choice(*values: Any) -> Check:
    """One of a few."""
    rule = ' or '.join(repr(value) for value in values)

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, str) or value not in values:
            _refuse(name, rule, value)
        return value

    return check


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        _refuse(name, 'a string that is not empty', value)
    return value


def amounts(name: str, value: Any) -> Mapping[str, float]:
    """A mapping of names to numbers above 0."""
    if not isinstance(value, Mapping):
        _refuse(name, 'a mapping of names to numbers', value)
    return {text(f'a name in {name}', key): number(0.0, True)(f'{name}.{key}', one) for key, one in value.items()}


def optional(check: Check) -> Check:
    """None, or what `check` accepts."""

    def check_optional(name: str, value: Any) -> Optional[Any]:
        return None if value is None else check(name, value)

    return check_optional

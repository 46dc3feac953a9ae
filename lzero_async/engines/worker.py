"""What a worker is: a role at work elsewhere, as the thread of that role sees it."""
from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Protocol, Tuple

from ..core.errors import Stopped
from ..core.protocols import KeepGoing

STEPWISE = ('collect', 'collect_random', 'evaluate')
"""What takes long. These get a `keep_going` as their last argument, and ask it between two environment steps."""


class Role(Protocol):
    """What is served: a collector or evaluator with whatever methods its remote side calls by name."""

    def load_weights(self, weights: Any, policy_version: int) -> None: ...

    def close(self) -> None: ...


MakeRole = Callable[[], Role]
"""Makes the role where it is to work. It travels there by pickle."""


@dataclass(frozen=True)
class Call:
    method: str
    args: Tuple[Any, ...] = ()


@dataclass(frozen=True)
class Raised:
    """What a role raised, told without the exception itself, which may not be known to the reader."""

    summary: str
    traceback: str

    @classmethod
    def by(cls, error: BaseException) -> 'Raised':
        told = ''.join(traceback.format_exception(type(error), error, error.__traceback__))
        return cls(f'{type(error).__name__}: {error}', told)

    def __str__(self) -> str:
        return f'{self.summary}\n\nThe traceback from there:\n\n{self.traceback}'


@dataclass(frozen=True)
class Reply:
    value: Any = None
    raised: Optional[Raised] = None
    stopped: bool = False
    seconds: float = field(default=0.0, compare=False)
    """The work itself, without the way there and back."""


class Worker(Protocol):
    """One child process or actor. Its role's threads call it one at a time; `kill` may come from any thread.

    `poll` raises WorkerLost once the worker is dead.
    """

    name: str

    def send(self, call: Call) -> None:
        """Begin a call. The first reply, before any call, says that the role is made."""

    def poll(self, timeout: float) -> Optional[Reply]:
        """The reply, if it comes within `timeout` seconds."""

    def beats(self) -> int:
        """A number that grows while the work goes on."""

    def ask_to_leave(self) -> None:
        """Let the call under way end at the next environment step."""

    def kill(self) -> None:
        """Put an end to it, whatever it does."""

    def close(self, grace: float) -> None:
        """Let it put its role away, for at most `grace` seconds, and then put an end to it."""


Launch = Callable[[int], Worker]
"""Starts a worker and returns at once. Gets how many were started for the role before."""


def answer(role: Role, call: Call, keep_going: KeepGoing) -> Reply:
    """Do what was asked for, on the worker's side."""
    begun = time.perf_counter()
    args = (*call.args, keep_going) if call.method in STEPWISE else call.args
    try:
        value = getattr(role, call.method)(*args)
    except Stopped:
        return Reply(stopped=True)
    except Exception as error:
        return Reply(raised=Raised.by(error))
    return Reply(value, seconds=time.perf_counter() - begun)

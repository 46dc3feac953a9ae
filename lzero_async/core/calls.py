"""Calling a function that may be a coroutine function."""
from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable


def call(fn: Callable[[], Any]) -> Any:
    """What `fn` returns; a coroutine is awaited first, on a private event loop."""
    result = fn()
    if not inspect.isawaitable(result):
        return result

    async def finish() -> Any:
        return await result

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(finish())
    # The caller sits inside a running loop, which cannot be entered twice: use one in a thread of its own.
    with ThreadPoolExecutor(max_workers=1) as helper:
        return helper.submit(asyncio.run, finish()).result()

"""The collector of PriorZero."""
from __future__ import annotations

import os
from typing import Any

from ..lightzero.collect import LightZeroCollector
from .readable import DebugLog
from .text_aside import TextAside
from .text_collector import TextSegmentCollector


class PriorZeroCollector(LightZeroCollector):
    """LightZeroCollector over TextSegmentCollector. With `prior_debug` it writes down every step in words."""

    def __init__(
        self, seat: Any, env: Any, tb_logger: Any, exp_name: str, by_version: bool = True, name: str = 'collector'
    ) -> None:
        super().__init__(seat, TextAside(env), tb_logger, exp_name, by_version, name)

    def _make_host(self, tb_logger: Any, exp_name: str, name: str) -> TextSegmentCollector:
        on_step = lambda env_id, step: None  # noqa: E731
        if self._cfg.get('prior_debug', False):
            on_step = DebugLog(os.path.join(exp_name, 'debug', f'{name}.txt'), self._seat.policy.prior).write
        return TextSegmentCollector(
            self._env, self._seat.policy, self._mode, self._cfg, tb_logger, name, self._check_wanted, on_step
        )

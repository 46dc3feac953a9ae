"""All that a learner needs to go on as if it had never stopped, but for its replay buffer's pages."""
from __future__ import annotations

from typing import Any, Dict

from ..torch_weights import copied
from . import random_states, random_streams


def capture_policy(policy: Any) -> Dict[str, Any]:
    """Weights, target weights and optimizer, copied."""
    scheduler = getattr(policy, 'lr_scheduler', None)
    return {
        'learn': copied(policy.learn_mode.state_dict()),
        'target_updates': int(getattr(policy._target_model, '_update_count', 0)),
        'lr_scheduler': None if scheduler is None else _numbers(scheduler.state_dict()),
    }


def restore_policy(policy: Any, state: Dict[str, Any]) -> None:
    policy.learn_mode.load_state_dict(state['learn'])
    policy._target_model._update_count = state['target_updates']
    if state['lr_scheduler'] is not None:
        policy.lr_scheduler.load_state_dict({**policy.lr_scheduler.state_dict(), **state['lr_scheduler']})


def _numbers(state: Dict[str, Any]) -> Dict[str, Any]:
    """A scheduler's counts; its functions come with its class."""
    return {
        name: list(value) if isinstance(value, list) else value for name, value in state.items()
        if isinstance(value, (int, float, bool, list)) and not name.startswith('lr_lambdas')
    }


def capture_random(stream: Any) -> Dict[str, Any]:
    """`stream` is the learner's own, if it has one."""
    return {
        'process': random_states.read_process(),
        'stream': None if stream is None else random_states.read_stream(stream),
    }


def restore_random(state: Dict[str, Any]) -> None:
    """In the learner's thread."""
    random_states.set_process(state['process'])
    stream = random_streams.current()
    if stream is not None and state['stream'] is not None:
        random_states.set_stream(stream, state['stream'])

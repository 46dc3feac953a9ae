"""Where random generators stand, as plain values and arrays, and how to put them back there."""
from __future__ import annotations

import random
from typing import Any, Dict

import numpy as np
import torch

from . import random_streams


def of_caller() -> Dict[str, Any]:
    """What the calling role draws from: its own stream, or, where it has none, the generators of its process."""
    stream = random_streams.current()
    return {'stream': read_stream(stream)} if stream is not None else {'process': read_process()}


def restore_caller(state: Dict[str, Any]) -> None:
    """The reverse. A state of the other kind is of no use, and left alone: the engine has changed."""
    stream = random_streams.current()
    if stream is not None and 'stream' in state:
        set_stream(stream, state['stream'])
    elif stream is None and 'process' in state:
        set_process(state['process'])


def read_stream(stream: Any) -> Dict[str, Any]:
    """Of a numpy RandomState, or of numpy's global functions."""
    algorithm, keys, position, has_gauss, gauss = stream.get_state()
    return {
        'algorithm': algorithm, 'keys': keys.astype(np.int64), 'position': int(position), 'has_gauss': int(has_gauss),
        'gauss': float(gauss),
    }


def set_stream(stream: Any, state: Dict[str, Any]) -> None:
    stream.set_state((
        state['algorithm'], state['keys'].astype(np.uint32), state['position'], state['has_gauss'], state['gauss']
    ))


def read_process() -> Dict[str, Any]:
    version, keys, gauss = random.getstate()
    return {
        'numpy': read_stream(np.random.mtrand._rand),
        'torch': torch.get_rng_state(),
        'cuda': [state.cpu() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
        'python': {'version': version, 'keys': np.array(keys, np.int64), 'gauss': gauss},
    }


def set_process(state: Dict[str, Any]) -> None:
    set_stream(np.random.mtrand._rand, state['numpy'])
    torch.set_rng_state(state['torch'])
    for device, cuda in enumerate(state['cuda'][:torch.cuda.device_count()]):
        torch.cuda.set_rng_state(cuda, device)
    python = state['python']
    random.setstate((python['version'], tuple(int(key) for key in python['keys']), python['gauss']))

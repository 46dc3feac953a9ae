"""Checkpoints in LightZero's own form, written so that a half-written one is never seen."""
from __future__ import annotations

import io
import os
from typing import Any, Dict

import torch

from ..checkpoints.durable import write_file


def save_checkpoint(state: Dict[str, Any], exp_name: str, name: str) -> str:
    """Write `state` to `<exp_name>/ckpt/<name>`, replacing what was there in one step. Returns the path."""
    folder = os.path.join(exp_name, 'ckpt')
    os.makedirs(folder, exist_ok=True)
    content = io.BytesIO()
    torch.save(state, content)
    write_file(folder, name, content.getvalue())
    return os.path.join(folder, name)

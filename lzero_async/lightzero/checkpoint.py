"""Checkpoints in LightZero's own form, written so that a half-written one is never seen."""
from __future__ import annotations

import os
from typing import Any, Dict

import torch


def save_checkpoint(state: Dict[str, Any], exp_name: str, name: str) -> str:
    """Write `state` to `<exp_name>/ckpt/<name>`, replacing what was there in one step. Returns the path."""
    path = os.path.join(exp_name, 'ckpt', name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    unfinished = path + '.tmp'
    torch.save(state, unfinished)
    os.replace(unfinished, path)
    return path

"""A prior's trained weights as files: the tensors of one version, and a manifest. Reading them runs no code."""
from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, Mapping, Tuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ..checkpoints.durable import FileRecord, read_file, write_file
from ..checkpoints.errors import StateDamaged
from ..core.errors import ConfigError

MANIFEST = 'prior.json'
FILE = re.compile(r'prior_\d{8,}\.safetensors')


def write_prior(folder: str, version: int, kind: Mapping[str, Any], weights: Dict[str, torch.Tensor]) -> None:
    """`kind`: plain values that must be the same where the weights are read. The manifest comes last."""
    os.makedirs(folder, exist_ok=True)
    record = write_file(folder, f'prior_{version:08d}.safetensors', save(weights))
    manifest = {'version': version, 'file': vars(record), 'kind': dict(kind)}
    write_file(folder, MANIFEST, json.dumps(manifest, indent=2).encode())
    for name in os.listdir(folder):
        if FILE.fullmatch(name) and name != record.name:
            os.unlink(os.path.join(folder, name))


def read_prior(folder: str, kind: Mapping[str, Any]) -> Tuple[int, Dict[str, torch.Tensor]]:
    """The version and the weights. Raises StateDamaged if a file is not as it was written, or not there."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding='utf-8') as file:
            manifest = json.load(file)
        version, record, written = int(manifest['version']), FileRecord(**manifest['file']), dict(manifest['kind'])
        if not FILE.fullmatch(record.name):
            raise ValueError(f'{record.name!r} is no name of a file of weights')
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateDamaged(f'{MANIFEST} in {folder} cannot be used: {type(error).__name__}: {error}') from error
    for name in kind:
        if kind[name] != written.get(name):
            raise ConfigError(f'{name} must be {written.get(name)!r}, as in {folder}, got {kind[name]!r}')
    try:
        return version, load(read_file(folder, record))
    except SafetensorError as error:
        raise StateDamaged(f'{record.name} is no file of weights: {error}') from error

"""async_summary.json: how the run stands, rewritten in one step so that a reader never sees half of it."""
from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from typing import Dict, Optional

from ..version import __version__
from .report import RunReport

SUMMARY_FILE = 'async_summary.json'


def write_summary(report: RunReport) -> None:
    path = os.path.join(report.exp_name, SUMMARY_FILE)
    unfinished = path + '.tmp'
    with open(unfinished, 'w', encoding='utf-8') as file:
        json.dump({**report.as_dict(), 'versions': versions()}, file, indent=2)
    os.replace(unfinished, path)


def versions() -> Dict[str, Optional[str]]:
    found: Dict[str, Optional[str]] = {'lzero-async': __version__, 'python': platform.python_version()}
    for package in ('lightzero', 'DI-engine', 'torch'):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found

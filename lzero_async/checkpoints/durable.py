"""Files that are there whole or not at all, whatever happens while they are written."""
from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass

from .errors import StateDamaged

BLOCK = 1 << 20
TEMPORARY = '.tmp'


@dataclass(frozen=True)
class FileRecord:
    """What a file must be like to be the one that was written."""

    name: str
    size: int
    sha256: str


def write_file(folder: str, name: str, content: bytes) -> FileRecord:
    """Write under another name, make sure that it is on the disk, and rename."""
    path = os.path.join(folder, name)
    temporary = path + TEMPORARY
    try:
        with open(temporary, 'wb') as file:
            view = memoryview(content)
            for begin in range(0, len(view), BLOCK):
                file.write(view[begin:begin + BLOCK])
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(folder)
    return FileRecord(name, len(content), hashlib.sha256(content).hexdigest())


def sync_folder(folder: str) -> None:
    """Make sure that the names in it are on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(folder: str, record: FileRecord) -> bytes:
    """The content of the file that `record` describes. Raises StateDamaged if it is not as it was written."""
    path = os.path.join(folder, record.name)
    try:
        size = os.path.getsize(path)
        if size != record.size:
            raise StateDamaged(f'{record.name} has {size} bytes instead of {record.size}')
        with open(path, 'rb') as file:
            content = file.read()
    except OSError as error:
        raise StateDamaged(f'{record.name} cannot be read: {error}') from error
    if hashlib.sha256(content).hexdigest() != record.sha256:
        raise StateDamaged(f'{record.name} is not what was written: its checksum is another')
    return content

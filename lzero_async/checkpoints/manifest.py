"""Manifest: what a saved state consists of, with the size and checksum of every file."""
from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Dict, Tuple

from .durable import FileRecord
from .errors import StateDamaged

FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    number: int
    learner: FileRecord
    pages: Tuple[FileRecord, ...]
    """Of the replay buffer, the oldest first."""
    page_ends: Tuple[int, ...]
    """Of each page: one more than the number of its newest segment."""
    run: Dict[str, Any]
    """Counts, and all else that is neither the learner's nor the buffer's."""
    saved_at: float
    """By the clock on the wall."""

    @property
    def name(self) -> str:
        return manifest_name(self.number)

    @property
    def files(self) -> Tuple[FileRecord, ...]:
        return (self.learner, *self.pages)

    def to_bytes(self) -> bytes:
        body = json.dumps({'format': FORMAT, **asdict(self)}, sort_keys=True)
        return json.dumps({'sha256': _digest(body), 'body': body}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> 'Manifest':
        """Raises StateDamaged if it is not as it was written, or asks for files elsewhere."""
        try:
            signed = json.loads(content)
            if signed['sha256'] != _digest(signed['body']):
                raise ValueError('its checksum is another')
            body = json.loads(signed['body'])
            if body['format'] != FORMAT:
                raise ValueError(f'format {body["format"]} is not {FORMAT}, which is what this version reads')
            return cls(
                int(body['number']), _record(body['learner']), tuple(_record(page) for page in body['pages']),
                tuple(int(end) for end in body['page_ends']), dict(body['run']), float(body['saved_at']),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateDamaged(f'not a manifest as it was written: {error}') from error


def manifest_name(number: int) -> str:
    return f'state_{number:08d}.json'


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _record(plain: Dict[str, Any]) -> FileRecord:
    record = FileRecord(str(plain['name']), int(plain['size']), str(plain['sha256']))
    if '/' in record.name or '\\' in record.name or record.name.startswith('.'):
        raise ValueError(f'{record.name!r} is not the name of a file beside it')
    return record

"""StateStore: the folder of a run's states. Writes one, finds the newest good one, throws old ones away."""
from __future__ import annotations

import contextlib
import logging
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from . import trees
from .durable import FileRecord, read_file, sync_folder, write_file
from .errors import StateDamaged
from .manifest import Manifest, manifest_name

logger = logging.getLogger(__name__)

MANIFEST = re.compile(r'state_(\d{8})\.json')
OURS = re.compile(r'(state_\d{8}\.json|learner_\d{8}\.safetensors|buffer_\d{8}\.safetensors)(\.tmp)?')


@dataclass(frozen=True)
class LoadedState:
    manifest: Manifest
    learner: Any
    pages: Tuple[Any, ...]


class StateStore:
    """Used by one thread at a time, but for `last_learner`."""

    def __init__(self, folder: str, keep: int) -> None:
        self.folder = folder
        self._keep = keep
        self._last: Optional[Manifest] = None

    # ---------------------------------------------------------------- writing

    def write(
        self, learner: Any, page: Any, page_end: int, oldest_segment: int, run: Dict[str, Any], saved_at: float
    ) -> Manifest:
        """A new state: the learner, and a page of the buffer beside those of the last state that are still needed.

        The manifest comes last: before it is there, the new files belong to nothing, and the state before is as it was.
        """
        os.makedirs(self.folder, exist_ok=True)
        number = self._next_number()
        old: List[Tuple[FileRecord, int]] = []
        if self._last is not None:
            old = [
                (record, end) for record, end in zip(self._last.pages, self._last.page_ends) if end > oldest_segment
            ]
        try:
            written = write_file(self.folder, f'buffer_{number:08d}.safetensors', trees.to_bytes(page))
            manifest = Manifest(
                number,
                write_file(self.folder, f'learner_{number:08d}.safetensors', trees.to_bytes(learner)),
                (*(record for record, _ in old), written),
                (*(end for _, end in old), page_end),
                run,
                saved_at,
            )
            write_file(self.folder, manifest.name, manifest.to_bytes())
        except OSError:
            self._throw_away([f'buffer_{number:08d}.safetensors', f'learner_{number:08d}.safetensors'])
            raise
        self._last = manifest
        self._prune()
        return manifest

    def _next_number(self) -> int:
        numbers = self.numbers()
        return max([*numbers, self._last.number if self._last is not None else 0], default=0) + 1

    def _prune(self) -> None:
        """Keep the last states and what they consist of."""
        kept = self.numbers()[:self._keep]
        needed = set()
        for number in kept:
            with contextlib.suppress(StateDamaged, OSError):
                manifest = self._manifest(number)
                needed.update([manifest.name, *(record.name for record in manifest.files)])
        self._throw_away([name for name in self._names() if name not in needed])

    def _throw_away(self, names: List[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.folder, name))
        with contextlib.suppress(OSError):
            sync_folder(self.folder)

    # ---------------------------------------------------------------- reading

    def numbers(self) -> List[int]:
        """Of the states whose manifests are here, the newest first."""
        found = [MANIFEST.fullmatch(name) for name in self._names()]
        return sorted((int(match.group(1)) for match in found if match), reverse=True)

    def load(self) -> Optional[LoadedState]:
        """The newest state that is as it was written; None if there is none at all. Raises StateDamaged if all are bad.

        Later states are written on top of it.
        """
        damages = []
        for number in self.numbers():
            try:
                loaded = self._load(number)
            except StateDamaged as damage:
                damages.append(str(damage))
                logger.error('state %d cannot be used, the one before it is tried: %s', number, damage)
                continue
            self._last = loaded.manifest
            if damages:
                logger.warning('going on from state %d, which is older than the last one', number)
            return loaded
        if damages:
            raise StateDamaged(f'no state in {self.folder} can be used: {"; ".join(damages)}')
        return None

    def last_learner(self) -> Optional[Any]:
        """Of the newest state that is as it was written; None if there is none. Any thread may ask."""
        for number in self.numbers():
            with contextlib.suppress(StateDamaged):
                return self._read(self._manifest(number).learner)
        return None

    def _load(self, number: int) -> LoadedState:
        manifest = self._manifest(number)
        return LoadedState(
            manifest, self._read(manifest.learner), tuple(self._read(record) for record in manifest.pages)
        )

    def _manifest(self, number: int) -> Manifest:
        name = manifest_name(number)
        try:
            with open(os.path.join(self.folder, name), 'rb') as file:
                return Manifest.from_bytes(file.read())
        except (OSError, StateDamaged) as error:
            raise StateDamaged(f'{name}: {error}') from error

    def _read(self, record: FileRecord) -> Any:
        content = read_file(self.folder, record)
        try:
            return trees.from_bytes(content)
        except StateDamaged as error:
            raise StateDamaged(f'{record.name}: {error}') from error

    def _names(self) -> List[str]:
        try:
            return [name for name in os.listdir(self.folder) if OURS.fullmatch(name)]
        except FileNotFoundError:
            return []

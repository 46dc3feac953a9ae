"""Takes out of TensorBoard's files what was drawn after a state was saved: a run that resumes draws it again."""
from __future__ import annotations

import glob
import io
import logging
import os

from ..checkpoints.durable import write_file

logger = logging.getLogger(__name__)


def trim_curves(folder: str, saved_at: float) -> int:
    """Keep the points up to `saved_at`, by the clock on the wall. Returns how many others there were."""
    return sum(_trim(path, saved_at) for path in glob.glob(os.path.join(glob.escape(folder), '*tfevents*')))


def _trim(path: str, saved_at: float) -> int:
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    kept, others = [], 0
    for record in RawEventFileLoader(path).Load():  # ends before a record that was cut off
        event = Event.FromString(record)
        if event.wall_time <= saved_at or event.HasField('file_version'):
            kept.append(record)
        else:
            others += 1
    if others:
        content = io.BytesIO()
        writer = RecordWriter(content)
        for record in kept:
            writer.write(record)
        write_file(*os.path.split(path), content.getvalue())
        logger.info('%d points that were drawn after the saved state are taken out of %s', others, path)
    return others

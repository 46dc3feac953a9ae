"""Objects on their way between processes, with the bytes of their arrays beside the pickle instead of in it."""
from __future__ import annotations

import pickle
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, List, Sequence

import numpy as np

PROTOCOL = 5


@dataclass(frozen=True)
class Encoded:
    head: bytes
    buffers: Sequence[Any]
    """Of whatever has bytes in one piece; arrays, mostly."""

    @property
    def nbytes(self) -> int:
        return len(self.head) + sum(int(buffer.nbytes) for buffer in self.buffers)


def encode(value: Any) -> Encoded:
    buffers: List[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=PROTOCOL, buffer_callback=buffers.append)
    return Encoded(head, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers])


def decode(encoded: Encoded) -> Any:
    """A copy: arrays in it can be written to, and keep nothing else alive."""
    return pickle.loads(encoded.head, buffers=[bytearray(buffer) for buffer in encoded.buffers])


def send(connection: 'Connection[Any, Any]', value: Any) -> None:
    encoded = encode(value)
    sizes = [buffer.nbytes for buffer in encoded.buffers]
    connection.send_bytes(pickle.dumps((encoded.head, sizes), protocol=PROTOCOL))
    for buffer in encoded.buffers:
        if buffer.nbytes:
            connection.send_bytes(buffer)


def receive(connection: 'Connection[Any, Any]') -> Any:
    """Raises EOFError or OSError if the other side is gone. Arrays in what it returns can be written to."""
    head, sizes = pickle.loads(connection.recv_bytes())
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        if buffer:
            connection.recv_bytes_into(buffer)
    return pickle.loads(head, buffers=buffers)

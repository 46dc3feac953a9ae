"""Objects over a connection, with the bytes of their arrays beside the pickle instead of in it."""
from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any, List

PROTOCOL = 5


def send(connection: 'Connection[Any, Any]', value: Any) -> None:
    buffers: List[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=PROTOCOL, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    connection.send_bytes(pickle.dumps((head, [view.nbytes for view in views]), protocol=PROTOCOL))
    for view in views:
        if view.nbytes:
            connection.send_bytes(view)


def receive(connection: 'Connection[Any, Any]') -> Any:
    """Raises EOFError or OSError if the other side is gone. Arrays in what it returns can be written to."""
    head, sizes = pickle.loads(connection.recv_bytes())
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        if buffer:
            connection.recv_bytes_into(buffer)
    return pickle.loads(head, buffers=buffers)

"""LightZero and DI-engine print hundreds of lines. While a run lasts they go to the run's log file."""
from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import warnings
from typing import Iterator, List, Optional, TextIO, Tuple, Type, Union

HOST_PACKAGES = ('lzero', 'ding', 'ditk', 'zoo')
LINE_FORMAT = '%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s'


class HostLog(io.TextIOBase):
    """A text stream that keeps what it gets until the run's folder is known, and then appends to a file in it."""

    def __init__(self) -> None:
        super().__init__()
        self._target: TextIO = io.StringIO()

    def open(self, path: str) -> None:
        """From now on write to `path`, beginning with all that came so far."""
        kept = self._target
        os.makedirs(os.path.dirname(path), exist_ok=True)
        target = open(path, 'a', encoding='utf-8', buffering=1)  # noqa: SIM115  closed by close()
        if isinstance(kept, io.StringIO):
            target.write(kept.getvalue())
        self._target = target

    def write(self, text: str) -> int:
        return self._target.write(text)

    def write_warning(
        self, message: Union[Warning, str], category: Type[Warning], filename: str, lineno: int,
        file: Optional[TextIO] = None, line: Optional[str] = None,
    ) -> None:
        self.write(f'{category.__name__}: {message} ({filename}:{lineno})\n')

    def flush(self) -> None:
        if not self._target.closed:
            self._target.flush()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        self._target.close()
        super().close()


@contextlib.contextmanager
def captured(log_level: str = 'INFO') -> Iterator[HostLog]:
    """Send standard output, standard error, warnings and the host's log records to a HostLog.

    Log records of other packages also still reach the handlers that the caller has installed.
    """
    log = HostLog()
    handler = logging.StreamHandler(log)
    handler.setFormatter(logging.Formatter(LINE_FORMAT))
    root = logging.getLogger()
    level_before, handlers_before = root.level, list(root.handlers)
    own_of_host = [one for one in handlers_before if type(one).__module__.split('.')[0] in HOST_PACKAGES]
    for one in own_of_host:
        root.removeHandler(one)
    not_from_host = _NotFromHost()
    for installed in handlers_before:
        installed.addFilter(not_from_host)
    root.addHandler(handler)
    ours = logging.getLogger(__name__.split('.')[0])
    our_level_before = ours.level
    ours.setLevel(log_level)
    try:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log), warnings.catch_warnings():
            warnings.showwarning = log.write_warning  # type: ignore[assignment]
            yield log
    finally:
        for installed in handlers_before:
            installed.removeFilter(not_from_host)
        # Whatever the host added would keep writing to our stream after it is closed.
        for added in [one for one in root.handlers if one not in handlers_before]:
            root.removeHandler(added)
        for one in own_of_host:
            root.addHandler(one)
        root.setLevel(level_before)
        ours.setLevel(our_level_before)
        log.close()


class _NotFromHost(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._folders: Tuple[str, ...] = tuple(folder + os.sep for folder in map(_folder_of, HOST_PACKAGES) if folder)

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.pathname.startswith(self._folders)


def _folder_of(package: str) -> Optional[str]:
    spec = importlib.util.find_spec(package)
    places: List[str] = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else None



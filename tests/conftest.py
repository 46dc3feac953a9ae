import logging

import pytest


@pytest.fixture(autouse=True)
def plain_log_level():
    """Python's own. Importing the host's world model sets it to DEBUG, so it would depend on the tests collected."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.WARNING)
    yield
    root.setLevel(level)

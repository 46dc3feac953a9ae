import os

import pytest
import torch


@pytest.fixture(scope='session', autouse=True)
def own_model_cache(tmp_path_factory):
    """The tiny models are made anew for the tests, and not in the user's cache. Gives the user's setting."""
    before = os.environ.get('LZERO_ASYNC_CACHE')
    os.environ['LZERO_ASYNC_CACHE'] = str(tmp_path_factory.mktemp('models'))
    yield before
    os.environ.pop('LZERO_ASYNC_CACHE')
    if before is not None:
        os.environ['LZERO_ASYNC_CACHE'] = before


@pytest.fixture(autouse=True)
def one_thread():
    """For models this small, more threads wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

import pytest
from fakes import our_threads
from hypothesis import settings

# Tests do not time: a slow machine is no failure.
settings.register_profile('core', deadline=None, database=None)
settings.load_profile('core')


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test():
    yield
    assert our_threads() == []

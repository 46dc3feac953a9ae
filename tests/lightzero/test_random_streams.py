import threading

import numpy as np

from lzero_async.lightzero import random_streams


def in_thread(work):
    result = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    return result[0]


def test_a_role_draws_from_its_own_stream_whatever_others_draw():
    def draws(disturb):
        with random_streams.installed():
            def role():
                with random_streams.drawing_from(random_streams.role_stream(3, 'collector-0')):
                    first = np.random.rand()
                    in_thread(disturb)
                    return first, np.random.dirichlet([0.3] * 4).tolist(), np.random.choice(100, 5).tolist()
            return in_thread(role)

    quiet = draws(lambda: None)
    assert quiet == draws(lambda: np.random.rand(1000))
    assert quiet == draws(lambda: np.random.seed(0))


def test_streams_differ_by_role_and_seed():
    roles = ('learner', 'collector-0', 'evaluator')
    seeds = {random_streams.role_seed(seed, role) for seed in (0, 1) for role in roles}
    assert len(seeds) == 6
    assert random_streams.role_seed(0, 'learner') == random_streams.role_seed(0, 'learner')


def test_threads_without_a_stream_use_numpys_global_one():
    np.random.seed(5)
    expected = np.random.rand(3).tolist()
    np.random.seed(5)
    with random_streams.installed():
        with random_streams.drawing_from(random_streams.role_stream(0, 'learner')):
            np.random.rand(7)
        assert np.random.rand(3).tolist() == expected


def test_the_inner_stream_counts_and_the_outer_comes_back():
    outer, inner = random_streams.role_stream(0, 'learner'), random_streams.role_stream(0, 'evaluator')
    expected_outer = random_streams.role_stream(0, 'learner').rand(2).tolist()
    expected_inner = random_streams.role_stream(0, 'evaluator').rand()
    with random_streams.installed(), random_streams.drawing_from(outer):
        first = np.random.rand()
        with random_streams.drawing_from(inner):
            assert np.random.rand() == expected_inner
        assert [first, np.random.rand()] == expected_outer


def test_numpy_is_put_back():
    before = np.random.choice, np.random.seed
    with random_streams.installed():
        with random_streams.installed():
            assert np.random.choice is not before[0]
        assert np.random.choice is not before[0]
    assert (np.random.choice, np.random.seed) == before

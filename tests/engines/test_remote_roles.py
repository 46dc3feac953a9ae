"""Roles that work elsewhere, as the loops see them: the same over child processes and over Ray actors."""
import os
import signal
import threading
from types import SimpleNamespace

import acting_roles
import numpy as np
import psutil
import pytest
import torch
from acting_roles import Once, OnceElsewhere, place_of_fall
from fakes import start
from hiring import PATIENCE, Every, assert_gone, is_gone, snapshot, torch_snapshot, yes

from lzero_async.core.config import AsyncConfig
from lzero_async.core.errors import RemoteError, Stopped, WorkerLost
from lzero_async.core.protocols import Evaluation, Replaceable
from lzero_async.core.segments import Collected
from lzero_async.engines import remote
from lzero_async.engines.remote import Patience, RemoteEvaluator
from lzero_async.torch_weights import ParameterSynchronizer

# A wait that never ends does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(600)

PROCESSES = pytest.mark.parametrize('engine', ['process'], indirect=True)
"""For what is the same code for both, or the matter of processes alone: an actor takes seconds to start."""


def both(tricks, for_ray):
    """All tricks for processes, some of them for Ray."""
    return pytest.mark.parametrize(
        'engine, trick',
        [('process', trick) for trick in tricks]
        + [pytest.param('ray', trick, marks=pytest.mark.ray) for trick in for_ray],
        indirect=['engine'],
    )


@pytest.fixture
def ready(hire):
    def make(*args, **kwargs):
        hired = hire(*args, **kwargs)
        hired.role.await_ready(yes)
        return hired
    return make


@pytest.fixture
def sync():
    synchronizer = ParameterSynchronizer(AsyncConfig(max_sync_retries=0, sync_timeout=PATIENCE))
    yield synchronizer
    synchronizer.cleanup()


def test_a_role_of_a_module_that_only_this_program_finds(engine, tmp_path, monkeypatch):
    (tmp_path / 'users_own_role.py').write_text(
        'from acting_roles import Acting\n\n\nclass UsersOwn(Acting):\n    pass\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import users_own_role

    stage = tmp_path / 'stage'
    stage.mkdir()
    worker = engine.launch('collector-0', users_own_role.UsersOwn(str(stage)))
    try:
        assert worker.poll(PATIENCE).raised is None
    finally:
        worker.kill()


def collect(hired, version=0, keep_going=yes):
    return hired.role.collect(snapshot(version), keep_going)


def told(collected):
    return collected.pieces[0].segments


def lost(hired, version=0):
    """What a collect raises of a worker that is lost; the next call raises it, too."""
    with pytest.raises(WorkerLost) as raised:
        collect(hired, version)
    with pytest.raises(WorkerLost) as again:
        collect(hired, version)
    assert again.value is raised.value
    return str(raised.value)


def assert_replaced(hired, old):
    """Another process takes the place of `old`, which is no more. That an actor does, too, is seen elsewhere."""
    hired.role.replace()
    assert_gone([old])
    assert hired.launches == [0, 1]
    if hired.engine == 'process':
        hired.role.await_ready(yes)
        assert told(collect(hired))['pid'] != old


# -------------------------------------------------------------------- work


def test_a_collector_works_elsewhere_and_brings_back_what_it_collected(ready):
    hired = ready()
    assert isinstance(hired.role, Replaceable)
    state = {'much': 1}
    collected = hired.role.collect(snapshot(3, weights={'w': 1}, rounds=2, learner_state=state), yes)
    assert isinstance(collected, Collected)
    assert (collected.pieces[0].policy_version, collected.pieces[0].transitions, collected.env_steps) == (3, 10, 10)
    # Neither weights nor the learner's state travel with a collect.
    assert told(collected)['snapshot'] == snapshot(3, rounds=2)
    assert told(collected)['pid'] == hired.stage.pid() != os.getpid()
    assert told(collect(hired))['call'] == 2
    assert hired.drawn == [('calls', 1.0, 3), ('twice', 2.0, 1), ('calls', 2.0, 0), ('twice', 4.0, 2)]
    assert hired.role.collect_random(4).pieces[0].segments == 'random'
    assert 0 < hired.role.work_seconds <= hired.role.call_seconds
    assert hired.launches == [0]


def test_arrays_come_back_whole_and_writable(ready):
    hired = ready(on_work=acting_roles.return_arrays)
    for call in (1, 2):
        large, empty, strided = told(collect(hired))['extra']
        assert large.shape == (3_000_000,) and (large == call).all() and empty.shape == (0,)
        assert strided.tolist() == [0, 2, 4, 6, 8]
        large[:] = 0
        assert not np.any(large)


@PROCESSES
def test_a_role_may_be_made_of_what_has_no_name_to_import(ready):
    factor = 7

    def work(role, keep_going):
        role.extra = factor * role.calls

    assert told(collect(ready(on_work=work)))['extra'] == 7


def test_an_evaluator_evaluates_elsewhere_and_saves_the_best_here(hire, sync):
    hired = hire('evaluator')
    assert hired.launches == []
    assert [hired.role.due(train_iter) for train_iter in (0, 1, 2)] == [True, False, True]
    assert hired.launches == [0]  # with the first question
    hired.role.await_ready(yes)
    assert isinstance(hired.role, Replaceable)
    target = sync.attach('evaluator', hired.role)
    evaluations = []
    for version in (3, 4, 9, 10):
        assert sync.deliver(target, torch_snapshot(version))
        evaluations.append(hired.role.evaluate(snapshot(version, learner_state=f'state-{version}'), yes))
    assert all(isinstance(evaluation, Evaluation) for evaluation in evaluations)
    assert [evaluation.policy_version for evaluation in evaluations] == [3, 4, 9, 10]
    assert [evaluation.is_best for evaluation in evaluations] == [True, True, False, False]
    assert hired.best == ['state-3', 'state-4']
    assert [point[:2] for point in hired.drawn[:2]] == [('calls', 1.0), ('twice', 2.0)]


@PROCESSES
def test_the_best_so_far_outlives_the_worker(ready, sync):
    hired = ready('evaluator')
    target = sync.attach('evaluator', hired.role)
    sync.deliver(target, torch_snapshot(5))
    assert hired.role.evaluate(snapshot(5, learner_state='best'), yes).is_best
    hired.role.replace()
    target.forget()
    hired.role.await_ready(yes)
    sync.deliver(target, torch_snapshot(6))
    assert not hired.role.evaluate(snapshot(6), yes).is_best
    assert hired.best == ['best']


# -------------------------------------------------------------------- weights


def test_each_version_is_put_once_however_many_load_it(ready, sync, engine, monkeypatch):
    team = [ready(f'collector-{index}') for index in range(2)]
    puts, put = [], engine.place.put
    monkeypatch.setattr(engine.place, 'put', lambda weights: (puts.append(weights), put(weights))[1], raising=False)
    targets = [sync.attach(hired.role.name, hired.role) for hired in team]
    for version in (1, 2):
        sync.publish(torch_snapshot(version, size=100_000))
        pulled = [start(lambda target=target: sync.pull(target)) for target in targets]
        assert [future.result(PATIENCE).policy_version for future in pulled] == [version] * 2
        sync.pull(targets[0])
        for hired in team:
            brought = told(collect(hired, version))
            assert (brought['loaded'], set(brought['weights'])) == (version, {float(version)})
    assert [weights['w'][0].item() for weights in puts] == [1.0, 2.0]
    assert sync.get_statistics()['sync_count'] == 4


@pytest.mark.parametrize('engine', [
    'process',
    pytest.param('ray', marks=pytest.mark.ray),
], indirect=True)
def test_who_writes_to_its_weights_does_not_change_those_of_others(ready, sync):
    # The second load of one overwrites what the first brought, which another has loaded, too.
    writer, reader = ready('collector-0', on_load=acting_roles.write_to_weights), ready('collector-1')
    sync.publish(torch_snapshot(1))
    for hired in (writer, reader):
        sync.pull(sync.attach(hired.role.name, hired.role))
    sync.publish(torch_snapshot(2))
    sync.pull(sync.attach('collector-0', writer.role))
    assert told(collect(writer, 2))['weights'] == [2.0] * 4
    assert told(collect(reader, 1))['weights'] == [1.0] * 4


def test_a_load_that_fails_leaves_the_worker_and_its_weights(ready, sync):
    hired = ready(on_load=Once(acting_roles.fall))
    target = sync.attach('collector-0', hired.role)
    sync.publish(torch_snapshot(1))
    sync.pull(target)
    assert told(collect(hired))['loaded'] == 1
    assert not sync.deliver(target, torch_snapshot(2))  # fails, once some work is done
    assert told(collect(hired))['loaded'] == 1
    assert sync.deliver(target, torch_snapshot(3))
    brought = told(collect(hired))
    assert (brought['loaded'], brought['weights']) == (3, [3.0] * 4)
    assert len(hired.stage.pids()) == 1


@PROCESSES
def test_a_load_that_raises_says_where(ready, engine):
    hired = ready(on_load=acting_roles.fall)
    with pytest.raises(RemoteError) as raised:
        hired.role.load_weights(engine.place.put(torch_snapshot(4).weights), 4)
    assert 'collector-0 did not load version 4: Unknown: broken over here' in str(raised.value)
    assert place_of_fall() in str(raised.value)


def test_a_worker_that_took_anothers_place_gets_the_newest_weights(ready, sync):
    hired = ready()
    target = sync.attach('collector-0', hired.role)
    for version in (1, 2):
        sync.publish(torch_snapshot(version))
    sync.pull(target)
    os.kill(hired.stage.pid(), signal.SIGKILL)
    lost(hired)
    sync.publish(torch_snapshot(3))
    hired.role.replace()
    target.forget()
    hired.role.await_ready(yes)
    assert told(collect(hired))['loaded'] is None
    assert sync.pull(target).policy_version == 3
    assert told(collect(hired))['weights'] == [3.0] * 4
    assert hired.launches == [0, 1] and hired.stage.notes('loaded') == ['2', '3']


# -------------------------------------------------------------------- what goes wrong inside


def test_what_a_role_raises_arrives_with_its_traceback(ready):
    hired = ready(on_work=Once(acting_roles.fall))
    message = lost(hired)
    assert message.startswith('collector-0 raised Unknown: broken over here')
    assert place_of_fall() in message
    assert_replaced(hired, hired.stage.pid())


def test_a_reply_that_cannot_be_pickled_says_so(ready):
    hired = ready(on_work=Once(acting_roles.return_a_lock))
    assert 'pickle' in lost(hired)
    assert_replaced(hired, hired.stage.pid())


def test_a_reply_that_cannot_be_read_here_says_so(ready):
    hired = ready(on_work=Once(acting_roles.return_what_cannot_be_read), patience=Patience(PATIENCE, 1.0, PATIENCE))
    assert 'broken over here' in lost(hired)


def test_a_role_that_cannot_be_made_is_told_at_once(hire):
    hired = hire(on_make=acting_roles.fall)
    with pytest.raises(RemoteError) as raised:
        hired.role.await_ready(yes)
    assert str(raised.value).startswith('collector-0 could not be made: Unknown: broken over here')
    assert place_of_fall() in str(raised.value)


@PROCESSES
def test_a_role_that_cannot_be_made_again_is_lost(ready):
    hired = ready(on_make=acting_roles.AfterFirst(acting_roles.fall))
    hired.role.replace()
    with pytest.raises(WorkerLost) as raised:
        hired.role.await_ready(yes)
    assert place_of_fall() in str(raised.value)


def test_a_role_that_dies_while_it_is_made_is_lost(hire):
    hired = hire(on_make=OnceElsewhere(acting_roles.os_exit))
    with pytest.raises(WorkerLost):
        hired.role.await_ready(yes)
    assert_replaced(hired, hired.stage.pid())


def test_a_worker_that_does_not_start_in_time_is_lost(hire):
    hired = hire(on_make=acting_roles.hang, patience=Patience(start=0.5))
    with pytest.raises(WorkerLost, match=r'did not start within 0\.5 s'):
        hired.role.await_ready(yes)


@PROCESSES
def test_who_waits_for_a_start_can_be_told_not_to(hire):
    hired = hire(on_make=acting_roles.hang)
    with pytest.raises(Stopped):
        hired.role.await_ready(lambda: not hired.stage.notes('made'))


@both(['segfault', 'sys_exit', 'os_exit', 'kill_self'], for_ray=['segfault', 'sys_exit'])
def test_a_worker_that_ends_in_its_work_is_lost_and_replaced(ready, engine, trick):
    hired = ready(on_work=Once(getattr(acting_roles, trick)))
    message = lost(hired)
    assert 'collector-0' in message
    if engine.name == 'process':
        ending = {'segfault': 'SIGSEGV', 'kill_self': 'SIGKILL'}.get(trick, 'exit code 7')
        assert ending in message
        if trick == 'segfault':
            assert 'Segmentation fault' in message and 'in segfault' in message
    assert_replaced(hired, hired.stage.pid())


@PROCESSES
def test_what_a_process_said_last_is_in_the_message(ready, engine, tmp_path):
    hired = ready(on_work=acting_roles.print_much)
    collect(hired)
    os.kill(hired.stage.pid(), signal.SIGKILL)
    message = lost(hired)
    assert 'said by the role\nand to stderr' in message and 'collector-0.log' in message
    # The next one's message does not show what the first has said.
    hired.role.replace()
    hired.role.await_ready(yes)
    os.kill(hired.stage.pid(2), signal.SIGKILL)
    assert 'said by the role' not in lost(hired)


# -------------------------------------------------------------------- killed


def test_a_worker_killed_while_idle_is_lost(ready):
    hired = ready()
    os.kill(hired.stage.pid(), signal.SIGKILL)
    lost(hired)
    assert_replaced(hired, hired.stage.pid())


def test_a_worker_killed_while_it_collects_is_lost(ready):
    hired = ready(on_work=Once(acting_roles.hang))
    collecting = start(lambda: collect(hired))
    hired.stage.await_note('tricked')
    os.kill(hired.stage.pid(), signal.SIGKILL)
    with pytest.raises(WorkerLost):
        collecting.result(PATIENCE)
    assert_replaced(hired, hired.stage.pid())


def test_a_worker_killed_while_it_loads_is_lost(ready, sync):
    hired = ready(on_load=OnceElsewhere(acting_roles.hang))
    target = sync.attach('collector-0', hired.role)
    sync.publish(torch_snapshot(1))
    loading = start(lambda: sync.pull(target))
    hired.stage.await_note('loading')
    os.kill(hired.stage.pid(), signal.SIGKILL)
    with pytest.raises(WorkerLost):
        loading.result(PATIENCE)
    hired.role.replace()
    target.forget()
    hired.role.await_ready(yes)
    assert sync.pull(target).policy_version == 1
    assert told(collect(hired))['weights'] == [1.0] * 4


# -------------------------------------------------------------------- hung


@both(['hang', 'hang_with_the_gil', 'stop_self'], for_ray=['hang_with_the_gil', 'stop_self'])
def test_a_worker_that_hangs_is_lost_and_replaced(ready, trick):
    hired = ready(on_work=Once(getattr(acting_roles, trick)), patience=Patience(PATIENCE, 1.0, PATIENCE))
    assert lost(hired) == 'collector-0 hung: nothing came of collect for 1 s'
    hired.role.replace()
    assert_gone([hired.stage.pid()])


@PROCESSES
def test_a_load_that_hangs_is_lost(ready, engine):
    hired = ready(on_load=acting_roles.hang, patience=Patience(PATIENCE, PATIENCE, 1.0))
    with pytest.raises(WorkerLost, match='hung: nothing came of load_weights for 1 s'):
        hired.role.load_weights(engine.place.put(torch_snapshot(1).weights), 1)


@PROCESSES
def test_a_process_that_stops_in_the_middle_of_its_reply_is_lost_and_can_be_killed(ready, engine):
    hired = ready(
        on_work=Once(acting_roles.stop_in_the_middle_of_the_reply), patience=Patience(PATIENCE, 1.0, PATIENCE)
    )
    assert 'hung' in lost(hired)
    assert hired.stage.notes('stopped') and not is_gone(hired.stage.pid())
    assert psutil.Process(hired.stage.pid()).status() == psutil.STATUS_STOPPED
    assert_replaced(hired, hired.stage.pid())


@PROCESSES
def test_a_process_that_stops_before_it_takes_the_weights_is_lost(ready, engine):
    # Their names alone are more than a socket holds.
    weights = engine.place.put({f'{"name" * 50}-{index}': torch.zeros(1) for index in range(5000)})
    hired = ready(patience=Patience(PATIENCE, PATIENCE, 0.5))
    os.kill(hired.stage.pid(), signal.SIGSTOP)
    loading = start(lambda: hired.role.load_weights(weights, 1))
    with pytest.raises(WorkerLost):
        loading.result(3)


def test_slow_work_that_goes_on_step_by_step_is_not_taken_for_hung(ready):
    hired = ready(on_work=acting_roles.step_slowly, patience=Patience(PATIENCE, 1.5, PATIENCE))
    assert told(collect(hired))['call'] == 1


# -------------------------------------------------------------------- told to stop


def test_a_collect_that_is_told_not_to_go_on_is_left_at_its_next_step(ready):
    hired = ready(on_work=acting_roles.step_until_told)
    with pytest.raises(Stopped, match='left its work before its end'):
        collect(hired, keep_going=lambda: not hired.stage.notes('working'))
    hired.role.close()
    assert hired.stage.notes('closed') == [str(hired.stage.pid())]


def test_a_worker_that_does_not_listen_is_left(ready, monkeypatch):
    monkeypatch.setattr(remote, 'LEAVING_S', 0.5)
    monkeypatch.setattr(remote, 'CLOSING_S', 0.5)
    hired = ready(on_work=acting_roles.hang)
    with pytest.raises(Stopped, match='left in the middle of its work'):
        collect(hired, keep_going=lambda: not hired.stage.notes('working'))
    hired.role.close()
    assert hired.stage.notes('closed') == []
    assert_gone([hired.stage.pid()])


# -------------------------------------------------------------------- the end


def test_closing_puts_the_role_away_and_ends_its_process(ready):
    hired = ready()
    collect(hired)
    hired.role.close()
    assert hired.stage.notes('closed') == [str(hired.stage.pid())]
    assert_gone(hired.stage.pids())
    hired.role.close()
    assert hired.stage.notes('closed') == [str(hired.stage.pid())]


def test_a_role_that_was_never_started_can_be_closed(hire):
    hired = hire()
    hired.role.close()
    assert hired.launches == []


def test_a_role_that_is_still_being_made_can_be_closed(hire):
    hired = hire(on_make=acting_roles.hang)
    hired.role.start()
    pid = hired.stage.pid()
    hired.role.close()
    assert_gone([pid])


@PROCESSES
def test_a_worker_that_is_lost_can_be_closed(ready):
    hired = ready(on_work=acting_roles.fall)
    lost(hired)
    hired.role.close()
    assert_gone(hired.stage.pids())


@PROCESSES
@pytest.mark.parametrize('trick', ['fall', 'os_exit', 'sys_exit'])
def test_a_role_that_fails_to_close_ends_all_the_same(ready, trick):
    hired = ready(on_close=getattr(acting_roles, trick))
    hired.role.close()
    assert_gone(hired.stage.pids())


def test_a_role_that_never_ends_closing_is_ended(ready, monkeypatch):
    monkeypatch.setattr(remote, 'CLOSING_S', 0.5)
    hired = ready(on_close=acting_roles.hang)
    hired.role.close()
    assert_gone(hired.stage.pids())


@both(['close', 'kill', 'lost'], for_ray=['kill'])
def test_what_a_role_has_forked_ends_with_it(ready, trick):
    hired = ready(on_make=acting_roles.fork_a_child)
    grandchild = int(hired.stage.await_note('grandchild'))
    assert not is_gone(grandchild)
    if trick == 'lost':
        os.kill(hired.stage.pid(), signal.SIGKILL)
        lost(hired)
        assert_replaced(hired, hired.stage.pid())
    elif trick == 'kill':
        hired.role._worker.kill()
    else:
        hired.role.close()
    assert_gone([hired.stage.pid(), grandchild])


@PROCESSES
def test_a_worker_can_be_killed_though_what_it_forked_holds_its_pipe(ready):
    hired = ready(on_make=acting_roles.fork_a_child_that_leaves)
    grandchild = int(hired.stage.await_note('grandchild'))
    killing = start(hired.role._worker.kill)
    try:
        killing.result(3)
    finally:
        os.kill(grandchild, signal.SIGKILL)
        killing.result(PATIENCE)


def test_a_question_whether_an_evaluation_is_due_starts_no_second_worker_beside_a_replacement():
    launched, arrived = [], threading.Event()

    def launch(restart):
        launched.append(restart)
        if restart == 1:
            arrived.set()
            asked.wait(1)  # who asks meanwhile has all the time
        return SimpleNamespace(kill=lambda: None)

    asked = threading.Event()
    evaluator = RemoteEvaluator(
        'evaluator', launch, None, Patience(), lambda *point: None, interval=Every(1), save_best=print
    )
    evaluator.start()
    replacing = start(evaluator.replace)  # by the evaluator's thread
    assert arrived.wait(PATIENCE)
    evaluator.due(2)  # by the learner's thread
    asked.set()
    replacing.result(PATIENCE)
    assert launched == [0, 1]

"""Whole runs of the trainer over fakes, with collectors and evaluator in workers."""
import os
import random
import signal
import threading
import time

import acting_roles
import pytest
import torch
from acting_roles import Acting, Once, Stage, place_of_fall
from fakes import FakeLearner, FakeObserver, make_run, our_threads
from hiring import PATIENCE, Every, assert_gone, until

from lzero_async.core.config import AsyncConfig
from lzero_async.core.errors import RemoteError, RestartsExhausted, RoleFailed, WorkerLost
from lzero_async.core.weights import WeightSnapshot
from lzero_async.engines.remote import Patience, RemoteCollector, RemoteEvaluator
from lzero_async.torch_weights import ParameterSynchronizer

# A run that hangs does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(600)

PROCESSES = pytest.mark.parametrize('engine', ['process'], indirect=True)
"""For what differs in nothing with Ray, whose actors take seconds to start."""


class TorchLearner(FakeLearner):
    def snapshot(self):
        weights = {'w': torch.full((3,), float(self.train_iter))}
        return WeightSnapshot(self.train_iter, self.env_step, weights)


class Team:
    """`run(...)` makes a run whose collectors, and evaluator if asked for, work elsewhere."""

    def __init__(self, engine, folder):
        self.engine = engine
        self.folder = folder
        self.stages = []
        self.workers = []

    def run(self, degree=2, collectors=1, evaluator=False, learner=None, patience=None, settings=None, **acting):
        settings = {'max_worker_restarts': 3, 'sync_timeout': PATIENCE, **(settings or {})}
        patience = patience or Patience(PATIENCE, PATIENCE, PATIENCE)
        launchers = [self._launcher(f'collector-{index}', acting) for index in range(collectors)]
        roles = [
            RemoteCollector(f'collector-{index}', launcher, self.engine.place, patience)
            for index, launcher in enumerate(launchers)
        ]
        for role in roles:
            role.start()
        evaluating = RemoteEvaluator(
            'evaluator', self._launcher('evaluator', {}), self.engine.place, patience, lambda *point: None,
            interval=Every(10), save_best=lambda state: None,
        ) if evaluator else None
        limits = {key: settings.pop(key) for key in ('max_env_step', 'max_train_iter') if key in settings}
        run = make_run(
            degree, async_eval=evaluator, collectors=roles, learner=learner or TorchLearner(), evaluator=evaluating,
            observer=FakeObserver(), synchronizer=ParameterSynchronizer(AsyncConfig(
                sync_timeout=PATIENCE, sync_retry_delay=0, max_sync_retries=0)), **limits, **settings,
        )
        run.roles = [*roles, evaluating] if evaluating else roles
        return run

    def _launcher(self, name, acting):
        stage = Stage(self.folder / name)
        stage.folder.mkdir()
        self.stages.append(stage)
        make_role = Acting(str(stage.folder), **acting)

        def launch(restart):
            self.workers.append(self.engine.launch(name, make_role))
            return self.workers[-1]

        return launch

    def pids(self):
        return [pid for stage in self.stages for pid in stage.pids()]

    def close(self):
        for worker in self.workers:
            worker.kill()


@pytest.fixture
def team(engine, tmp_path):
    team = Team(engine, tmp_path)
    yield team
    team.close()
    assert_gone(team.pids())
    until(lambda: not [name for name in our_threads() if 'spawner' not in name], 'no thread is left')


def segments(run):
    return [piece.segments for batch in run.learner.admitted for piece in batch.pieces]


def assert_sound(run, degree):
    """Bounds hold, every batch was collected with the weights of its stamp, and none was lost."""
    assert all(record.staleness <= degree and record.lag <= degree for record in run.observer.rounds)
    for batch in run.learner.admitted:
        told = batch.pieces[0].segments
        assert told['loaded'] == batch.policy_version == told['weights'][0]
    counts = run.trainer.get_statistics()
    assert counts['total_generated_samples'] == counts['processed_samples'] + counts['dropped_samples']
    assert counts['dropped_samples'] == 0
    assert counts['collect_count'] == counts['train_count'] == len(run.learner.admitted)
    return counts


def test_bounds_hold_and_the_evaluator_works_beside(team):
    run = team.run(degree=2, evaluator=True, settings={'max_train_iter': 60})
    outcome = run.trainer.run()
    assert outcome.ended_by == 'max_train_iter'
    counts = assert_sound(run, 2)
    assert counts['worker_restarts'] == 0
    assert run.observer.evaluations
    for evaluation in run.observer.evaluations:  # each of the weights that it says
        assert evaluation.reward_mean == -abs(evaluation.policy_version - 5)


@PROCESSES
def test_several_collectors_share_the_work(team):
    run = team.run(degree=4, collectors=2, on_work=acting_roles.step_a_little, settings={'max_env_step': 600})
    for role in run.roles:  # both have all they need, and begin together
        role.await_ready(lambda: True)
        role.load_weights(team.engine.place.put({'w': torch.zeros(3)}), -1)
    run.trainer.run()
    assert_sound(run, 4)
    shares = [len(stage.notes('working')) for stage in team.stages]
    assert sum(shares) >= 60 and min(shares) >= 0.25 * max(shares)
    assert {told['pid'] for told in segments(run)} == set(team.pids())


def test_workers_killed_at_random_moments_cost_no_batch_that_was_queued(team):
    chance, killed, stop = random.Random(5), [], threading.Event()
    enough = 5 if team.engine.name == 'process' else 3

    def kill_some():
        while len(killed) < enough and not stop.is_set():
            time.sleep(chance.random() * 0.3)
            stage = chance.choice(team.stages)
            pids = stage.pids()
            if pids and pids[-1] not in killed and len(stage.notes('working')) > 3 * len(killed):
                killed.append(pids[-1])
                os.kill(pids[-1], signal.SIGKILL)
        until(lambda: stop.is_set() or len(team.pids()) >= 2 + len(killed), 'the last is replaced')
        run.trainer.request_stop('killed enough')

    run = team.run(degree=3, collectors=2, on_work=acting_roles.step_a_little, settings={'max_worker_restarts': 9})
    killer = threading.Thread(target=kill_some)
    killer.start()
    try:
        outcome = run.trainer.run()
    finally:
        stop.set()
        killer.join()
    assert outcome.ended_by == 'killed enough'
    assert len(killed) == enough
    counts = assert_sound(run, 3)
    assert counts['worker_restarts'] == enough and len(team.pids()) == 2 + enough
    assert outcome.queue.total_produced == outcome.queue.total_consumed == len(run.learner.admitted)


def test_a_worker_that_is_lost_again_and_again_ends_the_run_in_order(team):
    run = team.run(degree=2, on_work=acting_roles.fall_from_the_third_on, settings={'max_worker_restarts': 1})
    with pytest.raises(RoleFailed) as failure:
        run.trainer.run()
    assert failure.value.role == 'collector-0'
    exhausted = failure.value.__cause__
    assert isinstance(exhausted, RestartsExhausted) and isinstance(exhausted.__cause__, WorkerLost)
    assert place_of_fall() in str(exhausted.__cause__) and 'max_worker_restarts 1' in str(failure.value)
    # What was collected before is trained.
    counts = assert_sound(run, 2)
    assert counts['train_count'] == 2 and counts['worker_restarts'] == 1
    assert len(team.pids()) == 2


@PROCESSES
def test_a_role_that_cannot_be_made_ends_the_run_at_once(team):
    run = team.run(on_make=acting_roles.fall)
    with pytest.raises(RoleFailed) as failure:
        run.trainer.run()
    assert isinstance(failure.value.__cause__, RemoteError)
    assert place_of_fall() in str(failure.value)
    assert len(team.pids()) == 1 and run.trainer.get_statistics()['worker_restarts'] == 0


@PROCESSES
def test_a_worker_that_hangs_is_replaced_and_the_run_goes_on(team):
    run = team.run(
        on_work=Once(acting_roles.hang, at=4), patience=Patience(PATIENCE, 1.0, PATIENCE),
        settings={'max_env_step': 200},
    )
    assert run.trainer.run().ended_by == 'max_env_step'
    assert assert_sound(run, 2)['worker_restarts'] == 1


@PROCESSES
def test_an_evaluator_that_dies_is_replaced_and_the_evaluation_made(team):
    run = team.run(degree=2, evaluator=True, settings={'max_train_iter': 40}, learner=TorchLearner())
    kill, evaluating = threading.Event(), team.stages[1]

    def work(update, keep_going):
        # The learner goes on once the first evaluation was made and its worker is dead.
        if update == 12:
            os.kill(evaluating.pid(), signal.SIGKILL)
            kill.set()

    run.learner.work = work
    run.trainer.run()
    assert kill.is_set() and len(evaluating.pids()) == 2
    assert run.observer.evaluations[-1].policy_version >= 20
    assert_sound(run, 2)


def test_an_interrupt_leaves_a_collect_and_ends_all(team):
    run = team.run(on_work=acting_roles.step_until_told)

    def interrupt():
        team.stages[0].await_note('working')
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert run.trainer.run().ended_by == 'interrupt'
    for role in run.roles:
        role.close()
    assert team.stages[0].notes('closed')

"""Real CartPole runs that note what happens in them, and the parts of theirs that workers import from here."""
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import resource
import threading
import time

import numpy
import psutil
import torch
from ding.torch_utils import to_ndarray
from ding.utils import ENV_REGISTRY
from easydict import EasyDict
from lzero.model.unizero_model import UniZeroModel
from real_parts import compiled
from small_configs import cartpole
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from zoo.classic_control.cartpole.envs.cartpole_lightzero_env import CartPoleEnv

from lzero_async.entry.run import run_training
from lzero_async.lightzero.collect import LightZeroCollector
from lzero_async.lightzero.learn import LightZeroLearner

HERE = pathlib.Path(__file__).parent
PATIENCE_S = 120

# ------------------------------------------------------------------ parts that a worker imports


@ENV_REGISTRY.register('noting_cartpole')
class NotingCartPole(CartPoleEnv):
    """Plays by its seed, which LightZero's own does not, writes each reset to the file `journal`, and may have a fault.

    `fault` is a dict: `how` is 'raise', 'hang', 'memory', 'nan' or 'nan reward', `after` the steps before it, and
    `once` a file that says that it has happened, if it is to happen once only.
    """

    @staticmethod
    def create_collector_env_cfg(cfg):
        return [EasyDict({**one, 'role': 'collector'}) for one in CartPoleEnv.create_collector_env_cfg(cfg)]

    @staticmethod
    def create_evaluator_env_cfg(cfg):
        return [EasyDict({**one, 'role': 'evaluator'}) for one in CartPoleEnv.create_evaluator_env_cfg(cfg)]

    def __init__(self, cfg):
        super().__init__(cfg)
        self._episodes = self._steps = 0

    def reset(self):
        observation = super().reset()
        first, _ = self._env.reset(seed=(self._seed + 1000 * self._episodes) % 2 ** 32)
        self._episodes += 1
        observation['observation'] = to_ndarray(first)
        with open(self._cfg['journal'], 'a') as journal:
            journal.write(f'{self._cfg["role"]} {os.getpid()} {os.getppid()} {self._seed}\n')
        return observation

    def step(self, action):
        self._steps += 1
        timestep = super().step(action)
        fault = self._cfg.get('fault')
        if fault is None or fault['role'] != self._cfg['role'] or self._steps <= fault['after']:
            return timestep
        if 'once' in fault:
            if os.path.exists(fault['once']):
                return timestep
            pathlib.Path(fault['once']).touch()
        return self._failed(fault['how'], timestep)

    @staticmethod
    def _failed(how, timestep):
        if how == 'raise':
            raise OSError('the simulator is gone')
        if how == 'nan':
            timestep.obs['observation'][0] = float('nan')
        elif how == 'nan reward':
            timestep = timestep._replace(reward=to_ndarray([float('nan')]))
        elif how == 'memory':
            in_use = psutil.Process().memory_info().vms
            resource.setrlimit(resource.RLIMIT_AS, (in_use, resource.getrlimit(resource.RLIMIT_AS)[1]))
            numpy.ones(2 ** 27)
        else:
            time.sleep(3600)
        return timestep


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a collector knows of a batch by itself."""

    name: str
    pid: int
    policy_version: int
    weights: str
    env_steps: int
    """Of this collector so far, as its host counts them."""
    cores: frozenset
    first_observations: tuple


class SignedCollector(LightZeroCollector):
    """A user's collector: it leaves its signature on the segments. LightZero's curves come sooner than usual."""

    def __init__(self, *args, name='collector', **kwargs):
        super().__init__(*args, name=name, **kwargs)
        self._host._collect_print_freq = 5
        self._name = name
        self._version = None

    def before_collect(self, snapshot):
        self._version = snapshot.policy_version

    def after_collect(self, collected):
        segments = [segment for piece in collected.pieces for segment in piece.segments[0]]
        signature = Signature(
            self._name, os.getpid(), self._version, digest(self._seat.policy._model.state_dict()), self._host.envstep,
            frozenset(os.sched_getaffinity(0)), tuple(to_tuple(segment.obs_segment[0]) for segment in segments),
        )
        for segment in segments:
            segment.signature = signature
        return collected


class OwnModel(UniZeroModel):
    """A user's own model. Its weights have one name more."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_buffer('mark', torch.tensor([4.0, 2.0]))


def to_tuple(observation):
    return tuple(round(float(value), 6) for value in observation)


def digest(weights):
    """The same for the same weights, wherever they are."""
    hashed = hashlib.sha256()
    for name in sorted(weights):
        hashed.update(name.replace('_orig_mod.', '').encode())  # where torch.compile has wrapped the module
        hashed.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()


# ------------------------------------------------------------------ a run


class Notes:
    """What one run was seen to do."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.trainer = None
        self.digests = {}
        self.collected = []  # (signature, Collected), in the order in which they were done
        self.admitted = []  # batches
        self.owed = 0
        self.rounds = []  # (record, statistics of that moment)
        self.evaluations = []  # (snapshot, evaluation)
        self.processes = set()  # all that were started by this process or below it
        self.at_the_gate = set()  # threads of collectors that wait to collect
        self.result = self.summary = None
        self.called_at = self.started_at = self.first_batch_at = self.ended_at = None

    @property
    def statistics(self):
        return self.summary['statistics']

    @property
    def run_folder(self):
        return self.folder / 'run'

    @property
    def log(self):
        return (self.run_folder / 'log' / 'lzero_async.log').read_text()

    @property
    def journal(self):
        """Each reset of an environment: (role, pid, parent's pid, seed)."""
        lines = (self.folder / 'journal').read_text().split('\n')[:-1]
        return [(role, *map(int, numbers)) for role, *numbers in map(str.split, lines)]

    def curves(self):
        events = EventAccumulator(str(self.run_folder / 'log' / 'serial'))
        events.Reload()
        return {name: [point.value for point in events.Scalars(name)] for name in events.Tags()['scalars']}

    def worker(self, role):
        """The remote side's handle of `collector-N` or `evaluator`."""
        if role == 'evaluator':
            return self.trainer._evaluation._evaluator._started
        return self.trainer._collectors[int(role.rsplit('-', 1)[1])]._collector._started

    def pids_of(self, role):
        return {pid for one, pid, *_ in self.journal if one == role}

    def left_over(self):
        """Processes of the run that are still there."""
        return still_there(self.processes)

    def see_processes(self):
        self.processes.update(below(psutil.Process()))


def below(process):
    """All that it has started, and they; without the tracker that Python keeps for the whole program."""
    found = []
    for one in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if 'resource_tracker' not in ' '.join(one.cmdline()):
                found.append(one)
    return found


def still_there(processes):
    _, alive = psutil.wait_procs(list(processes), timeout=20)
    return [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def own_model(folder):
    return OwnModel(**compiled(folder).policy.model)


def wait_until(holds):
    give_up_at = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_at, 'it never came to that'
        time.sleep(0.01)


def noting_cartpole(folder, fault=None, **policy):
    main, create = cartpole(pathlib.Path(folder) / 'run', **policy)
    main.env.journal = str(pathlib.Path(folder) / 'journal')
    if fault is not None:
        main.env.fault = fault
    create.env = EasyDict(type='noting_cartpole', import_names=['engine_runs'])
    return main, create


def noted_run(
    folder, config=None, max_env_step=300, model=None, seed=0, on_round=lambda notes, record: None, line_up_until=0,
    notes=None, **policy,
):
    """Train, and return the notes. Until the round `line_up_until` the learner waits for all collectors to stand at
    their gate before each round.
    """
    notes = notes or Notes(folder)
    main, create = config or noting_cartpole(folder)
    main.policy.update(policy)

    class NotingLearner(LightZeroLearner):
        def snapshot(self):
            snapshot = super().snapshot()
            notes.digests[snapshot.policy_version] = digest(snapshot.weights)
            return snapshot

        def admit(self, batch):
            super().admit(batch)
            notes.admitted.append(batch)
            notes.owed += batch.transitions if self._may_train() else 0

        def before_round(self):
            if len(notes.rounds) < line_up_until:
                everyone = len(notes.trainer._collectors)
                wait_until(lambda: len(notes.at_the_gate) == everyone or notes.trainer._stop.requested)

    def listen(trainer):
        notes.trainer, notes.started_at = trainer, time.monotonic()
        _listen_to_the_gate(notes, trainer._coordinator)
        for loop in trainer._collectors:
            _listen_to_collector(notes, loop._collector)
        evaluator = trainer._evaluation._evaluator
        evaluate, on_round_before = evaluator.evaluate, trainer._observer.on_round

        def noted_evaluate(snapshot, keep_going):
            evaluation = evaluate(snapshot, keep_going)
            notes.evaluations.append((snapshot, evaluation))
            return evaluation

        def noted_round(record):
            on_round_before(record)
            notes.rounds.append((record, trainer.get_statistics()))
            notes.see_processes()
            on_round(notes, record)

        evaluator.evaluate, trainer._observer.on_round = noted_evaluate, noted_round

    notes.called_at = time.monotonic()
    notes.result = run_training(
        [main, create], seed, model, None, None, max_env_step, listen,
        learner_class=NotingLearner, collector_class=SignedCollector,
    )
    notes.ended_at = time.monotonic()
    notes.summary = json.loads((notes.run_folder / 'async_summary.json').read_text())
    return notes


def _listen_to_the_gate(notes, coordinator):
    run_collect = coordinator.run_collect

    def noted(fn, *args, **kwargs):
        thread = threading.get_ident()
        notes.at_the_gate.add(thread)
        try:
            return run_collect(lambda: (notes.at_the_gate.discard(thread), fn())[1], *args, **kwargs)
        finally:
            notes.at_the_gate.discard(thread)

    coordinator.run_collect = noted


def _listen_to_collector(notes, collector):
    collect = collector.collect

    def noted(snapshot, keep_going):
        collected = collect(snapshot, keep_going)
        signatures = {segment.signature for piece in collected.pieces for segment in piece.segments[0]}
        assert len(signatures) == 1
        notes.first_batch_at = notes.first_batch_at or time.monotonic()
        notes.collected.append((signatures.pop(), collected))
        return collected

    collector.collect = noted

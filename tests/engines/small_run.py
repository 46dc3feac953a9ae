"""A run in a process of its own, to be ended by a test: python small_run.py ENGINE FOLDER TRICK.

Its workers fork a process each. They work as the trick says; a stop is asked for by the note `end`. Weights go to them
only with the trick `hang_with_the_gil`: torch takes long to import.
"""
import contextlib
import pathlib
import signal
import sys
import threading

import acting_roles
from acting_roles import Acting, Stage
from fakes import FakeEvaluator, FakeLearner, make_run
from hiring import open_engine, until

from lzero_async.core.config import AsyncConfig
from lzero_async.core.weights import WeightSnapshot
from lzero_async.engines import remote
from lzero_async.engines.remote import Patience, RemoteCollector


class Learner(FakeLearner):
    """With weights, or with none that would have to be carried."""

    def __init__(self, weighs):
        super().__init__()
        self._weighs = weighs

    def snapshot(self):
        if not self._weighs:
            return WeightSnapshot(self.train_iter, self.env_step, None)
        import torch

        return WeightSnapshot(self.train_iter, self.env_step, {'w': torch.full((3,), float(self.train_iter))})


def main(engine_name, folder, trick):
    stage = Stage(folder)
    # Who does not listen is not waited for as long as in earnest.
    remote.LEAVING_S, remote.CLOSING_S = 20.0, 1.0
    with contextlib.ExitStack() as at_end:
        engine = open_engine(engine_name, pathlib.Path(folder, 'log'))
        at_end.callback(engine.close)
        make_role = Acting(folder, on_make=acting_roles.fork_a_child, on_work=getattr(acting_roles, trick))
        collectors = [
            RemoteCollector(
                name, lambda restart, name=name: engine.launch(name, make_role), engine.place, Patience()
            ) for name in ('collector-0', 'collector-1')
        ]
        for collector in collectors:
            collector.start()
            at_end.callback(collector.close)
        weighs = trick == 'hang_with_the_gil'
        run = make_run(
            2, collectors=collectors, learner=Learner(weighs), evaluator=FakeEvaluator(), max_worker_restarts=0,
            synchronizer=for_torch() if weighs else None,
        )
        threading.Thread(target=watch, args=(stage, run.trainer), daemon=True).start()
        print(run.trainer.run().ended_by, flush=True)


def for_torch():
    from lzero_async.torch_weights import ParameterSynchronizer

    return ParameterSynchronizer(AsyncConfig())


def watch(stage, trainer):
    """Notes of what the program is told, and by whom."""
    previous = signal.getsignal(signal.SIGINT)
    until(lambda: signal.getsignal(signal.SIGINT) is not previous, 'the run begins')
    while not stage.notes('end'):
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler and not stage.notes('first'):
            stage.note('first')
        threading.Event().wait(0.02)
    trainer.request_stop('told to end')


if __name__ == '__main__':
    main(*sys.argv[1:])

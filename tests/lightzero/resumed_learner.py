"""A learner in a program of its own: `save` trains, saves its state and goes on; `resume` goes on from that state.

    python resumed_learner.py save|resume FOLDER SETTINGS

Prints the digest of its weights after 20 more updates. SETTINGS are those of the policy, as JSON.
"""
import contextlib
import hashlib
import json
import os
import sys

import torch
from small_configs import cartpole

from lzero_async.checkpoints.store import StateStore
from lzero_async.core.segments import SegmentBatch, Stamp
from lzero_async.core.weights import WeightSnapshot
from lzero_async.engines.opened import Engines
from lzero_async.lightzero import build, random_streams
from lzero_async.lightzero.run_config import compile_run, read_config

UPDATES = 20


def digest(policy):
    found = hashlib.sha256()
    for name, tensor in policy.learn_mode.state_dict()['model'].items():
        found.update(name.encode())
        found.update(tensor.numpy().tobytes())
    for tensor in policy.learn_mode.state_dict()['target_model'].values():
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def admit(parts, collects):
    for _ in range(collects):
        version = parts.learner.train_iter
        collected = parts.collectors[0].collect(WeightSnapshot(version, 0, None), lambda: True)
        stamp, earlier = Stamp(version, 0, 0.0), tuple(
            Stamp(one, 0, 0.0) for one in {piece.policy_version for piece in collected.pieces} - {version}
        )
        parts.learner.admit(SegmentBatch(collected.pieces, parts.learner.env_step + 60, stamp, earlier, 0.0))


def reanalyze(parts, slices=5):
    """As many as leave a segment half done."""
    for _ in range(slices):
        parts.learner.idle_work()


def digest_of_targets(buffer):
    found = hashlib.sha256()
    for segment in buffer.game_segment_buffer:
        found.update(segment.child_visit_segment.tobytes())
        found.update(str(segment.reanalyze_time).encode())
    return found.hexdigest()


def main():
    mode, folder, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(1)
    os.chdir(folder)
    main_config, create = cartpole('run', off_policy_degree=2, resume=True, **settings)
    run = read_config([main_config, create], seed=0 if mode == 'save' else 7)  # nothing may come from the seed
    cfg = compile_run(run)
    store = StateStore('state', 2)
    resumed = store.load() if mode == 'resume' else None
    parts = build.build(run, cfg, None, None, Engines(run.settings, 'log'), resumed=resumed)
    with random_streams.installed(), random_streams.drawing_from(random_streams.role_stream(run.seed, 'learner')):
        if mode == 'save':
            for _ in range(3):
                admit(parts, 2)
                parts.learner.train_round(lambda: True)
                reanalyze(parts)
                page = parts.learner.journal.page()
                store.write(
                    {**parts.learner.capture(), 'collectors': []}, page.tree(), page.end,
                    parts.learner._buffer.base_idx, {}, 0.0,
                )
                parts.learner.journal.written(page)
        reanalyze(parts)
        parts.learner._begin_round()
        parts.learner._update(UPDATES, lambda: True)
    told = json.dumps({
        'digest': digest(parts.policy), 'train_iter': parts.learner.train_iter,
        'transitions': parts.learner._buffer.get_num_of_transitions(),
        'priorities': float(parts.learner._buffer.game_pos_priorities.sum()),
        'targets': digest_of_targets(parts.learner._buffer),
        'reanalyzed': parts.learner.idle_numbers().get('background_reanalyzed_segments'),
        'versions': [segment.lzero_async_stamp.policy_version for segment in parts.learner._buffer.game_segment_buffer],
    })
    parts.close()
    return told


if __name__ == '__main__':
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        print(main(), file=out)

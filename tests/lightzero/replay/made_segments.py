"""GameSegments made by hand: of any length, of any observations, without an environment."""
import copy

import numpy as np
from lzero.mcts.buffer.game_segment import GameSegment


def settings(cfg, **policy):
    """A copy of a policy's config with other settings."""
    changed = copy.deepcopy(cfg.policy)
    model = policy.pop('model', {})
    changed.update(policy)
    changed.model.update(model)
    return changed


def made_segment(config, draw, shape=(4,), steps=None, observations='f4', rewards='f8'):
    """Full, with steps of the next one behind it, or an episode's end. `draw` is a RandomState."""
    full = steps is None and draw.rand() < 0.7
    steps = config.game_segment_length if full else steps or draw.randint(1, config.game_segment_length + 1)
    padded = steps + (draw.randint(0, config.num_unroll_steps + config.td_steps + 1) if full else 0)
    segment = GameSegment(None, config.game_segment_length, config)
    frames = config.model.frame_stack_num
    segment.obs_segment = (100 * draw.randn(padded + frames, *shape)).astype(observations)
    segment.action_segment = draw.randint(0, config.model.action_space_size, padded)
    segment.reward_segment = draw.randn(max(steps, padded - draw.randint(0, 2))).astype(rewards)
    segment.child_visit_segment = draw.dirichlet([1.0] * config.model.action_space_size, padded)
    segment.root_value_segment = draw.rand(padded)
    segment.action_mask_segment = np.ones((steps, config.model.action_space_size), np.int8)
    segment.to_play_segment = np.full(steps, -1)
    segment.timestep_segment = np.arange(steps) + draw.randint(0, 150)
    segment.improved_policy_probs = np.array([])
    return segment, not full


def push_made(buffers, config, draw, count, **kind):
    """The same segments into all buffers, each with its own copy."""
    made = [made_segment(config, draw, **kind) for _ in range(count)]
    facts = [
        {
            'priorities': draw.rand(min(len(segment), config.game_segment_length)) if config.use_priority else None,
            'done': done, 'unroll_plus_td_steps': 1,
        } for segment, done in made
    ]
    for buffer in buffers:
        buffer.push_game_segments(([copy.deepcopy(segment) for segment, _ in made], facts))
        buffer.remove_oldest_data_to_fit()

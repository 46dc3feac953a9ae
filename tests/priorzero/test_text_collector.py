"""Episodes as they are recorded, against the engine's own transcript of the same commands."""
import dataclasses

import numpy as np
import pytest

pytest.importorskip('jericho')
pytest.importorskip('transformers')

from small_priorzero import SMALL, collector_of, compiled, learner_policy

from lzero_async.core.weights import WeightSnapshot
from lzero_async.lightzero.families import family_of
from lzero_async.priorzero.engine import story_path
from lzero_async.priorzero.learn import samples_of
from lzero_async.priorzero.steps import STEPS
from lzero_async.priorzero.story import Story
from lzero_async.priorzero.tokens import ObservationTokens

BATCHES = 7
SIZE = dataclasses.replace(SMALL, max_steps=25)  # episodes end amid segments, and amid collects


@pytest.fixture(scope='module')
def played(tmp_path_factory):
    """Real collects: the config, the policy, and for each collect what it handed over with the version it had."""
    cfg = compiled(tmp_path_factory.mktemp('played'), SIZE)
    policy = learner_policy(cfg)
    collector = collector_of(cfg, policy)
    try:
        collects = [
            collector.collect(WeightSnapshot(version, 0, None), lambda: True) for version in range(BATCHES)
        ]
        yield cfg, policy, collects, collector._host.last_game_segments
    finally:
        collector.close()


def segments_of(collects):
    return [pair for collected in collects for piece in collected.pieces for pair in zip(*piece.segments)]


def episodes_of(played):
    """Steps of whole episodes, in the order played: those that begin at move 0 and end with a done segment."""
    cfg, _, collects, _ = played
    lines = {}
    episodes = []
    for segment, facts in segments_of(collects):
        begins = not facts[STEPS][0].state.history
        key = None if begins else next(
            (key for key, (_, follows) in lines.items() if np.array_equal(follows, segment.obs_segment[0])), None
        )
        steps = [] if key is None else lines.pop(key)[0]
        steps = steps + [(segment, place, step) for place, step in enumerate(facts[STEPS])]
        if facts['done']:
            episodes.append(steps)
        else:
            lines[id(segment)] = (steps, segment.obs_segment[cfg.policy.game_segment_length])
    return [steps for steps in episodes if not steps[0][2].state.history]


def test_every_field_agrees_with_the_engine(played):
    cfg = played[0]
    episodes = episodes_of(played)
    assert len(episodes) >= 4
    tokens = ObservationTokens(cfg.env.tokenizer_path, cfg.env.max_seq_len)
    for steps in episodes:
        story = Story(story_path(cfg.env.env_id))  # of this game, chance plays no part
        move = story.reset()
        said, turns = move.text, []
        for number, (segment, place, step) in enumerate(steps):
            state, here = step.state, story.surroundings()
            assert state.observation.startswith(said) and here.room in state.observation
            assert state.valid_actions == here.valid_actions[:cfg.env.max_action_num]
            assert state.score == move.score and state.moves == move.moves
            assert [(turn.action, turn.reward) for turn in state.history] == turns[-cfg.env.history_turns:]
            assert segment.action_segment[place] == step.action
            assert step.action_text == here.valid_actions[step.action]
            assert np.array_equal(segment.obs_segment[place], tokens.of(state)[0])
            assert segment.action_mask_segment[place].tolist() == [
                int(index < len(state.valid_actions)) for index in range(cfg.env.max_action_num)
            ]
            assert segment.timestep_segment[place] == number and segment.to_play_segment[place] == -1
            move = story.step(step.action_text)
            assert segment.reward_segment[place] == step.reward == move.reward
            said = move.text
            turns.append((step.action_text, move.reward))
        assert len(steps) == cfg.env.max_steps or story.done


def test_what_the_search_said_belongs_to_the_same_step(played):
    cfg, _, collects, _ = played
    size = cfg.policy.model.action_space_size
    for segment, facts in segments_of(collects):
        for place, step in enumerate(facts[STEPS]):
            count = len(step.state.valid_actions)
            assert len(step.visits) == len(step.world_model_policy) == len(step.scores.log_prior) == count
            assert sum(step.visits) == cfg.policy.num_simulations and step.visits[step.action] > 0
            assert segment.child_visit_segment[place].shape == (size,)
            assert segment.child_visit_segment[place][:count] == pytest.approx(
                np.array(step.visits) / cfg.policy.num_simulations
            )
            assert not segment.child_visit_segment[place][count:].any()
            assert segment.root_value_segment[place] == step.searched_value


def test_what_the_prior_said_belongs_to_the_same_step(played):
    _, policy, collects, _ = played
    for _, facts in segments_of(collects)[:6]:
        for step in facts[STEPS]:
            again = policy.prior.score([step.state])[0]
            assert again.prompt_ids == step.scores.prompt_ids and again.version == step.scores.version == 0
            assert [one.token_ids for one in again.actions] == [one.token_ids for one in step.scores.actions]
            assert again.log_prior == pytest.approx(step.scores.log_prior, abs=1e-4)


def test_full_segments_are_padded_with_what_followed(played):
    cfg, _, collects, _ = played
    length, follow = cfg.policy.game_segment_length, cfg.policy.num_unroll_steps + cfg.policy.td_steps
    padded = 0
    for segment, facts in segments_of(collects):
        own = len(facts[STEPS])
        assert facts['unroll_plus_td_steps'] == 0
        if facts['done']:
            assert len(segment.action_segment) == own <= length
            continue
        padded += 1
        more = len(segment.action_segment) - own
        assert own == length and 0 < more <= follow
        for name in ('action_mask_segment', 'to_play_segment', 'timestep_segment', 'child_visit_segment'):
            assert len(getattr(segment, name)) == own + more, name
        assert len(segment.obs_segment) == cfg.policy.model.frame_stack_num + own + more
        assert segment.timestep_segment.tolist() == list(
            range(segment.timestep_segment[0], segment.timestep_segment[0] + own + more)
        )
    assert padded >= 2


def test_no_step_is_lost_and_none_comes_twice(played):
    _, _, collects, rest = played
    handed = sum(len(facts[STEPS]) for _, facts in segments_of(collects))
    kept = sum(len(segment.action_segment) for segment in rest if segment is not None)
    assert handed + kept == sum(collected.env_steps for collected in collects)


def test_a_segment_comes_at_most_one_collect_late(played):
    _, _, collects, _ = played
    late = 0
    for version, collected in enumerate(collects):
        for piece in collected.pieces:
            assert version - 1 <= piece.policy_version <= version
            late += piece.policy_version < version
    assert late > 0


def test_the_hosts_buffer_makes_batches_of_them(played):
    cfg, policy, collects, _ = played
    for serial in (True, False):
        buffer = family_of('priorzero').make_buffer(cfg.policy, serial, accelerate=True)
        for collected in collects:
            for piece in collected.pieces:
                buffer.push_game_segments(piece.segments)
        assert buffer.get_num_of_transitions() == sum(len(facts[STEPS]) for _, facts in segments_of(collects))
        for _ in range(20):
            _, target = buffer.sample(cfg.policy.batch_size, policy)
            assert np.isfinite(target[1]).all() and np.allclose(target[2].sum(-1)[:, 0], 1)


def test_samples_of_the_prior_are_of_the_action_taken(played):
    cfg, _, collects, _ = played
    for segment, facts in segments_of(collects):
        samples = samples_of(segment, facts[STEPS], cfg.policy.td_steps, cfg.policy.discount_factor)
        assert len(samples) == len(facts[STEPS])
        for sample, step in zip(samples, facts[STEPS]):
            chosen = step.scores.actions[step.action]
            assert (sample.action_ids, sample.log_probs) == (chosen.token_ids, chosen.log_probs)
            assert sample.prompt_ids == step.scores.prompt_ids and sample.version == 0
        step, rewards = facts[STEPS][0], segment.reward_segment
        if len(segment.root_value_segment) > cfg.policy.td_steps:
            discount = cfg.policy.discount_factor
            target = sum(discount ** index * rewards[index] for index in range(5))
            target += discount ** 5 * segment.root_value_segment[5]
            assert samples[0].advantage == pytest.approx(target - step.predicted_value)

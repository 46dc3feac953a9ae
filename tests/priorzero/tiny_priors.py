"""States of a small adventure, and priors of the tiny model to score them."""
from lzero_async.priorzero.causal_lm_prior import CausalLMPrior
from lzero_async.priorzero.prior_config import PriorConfig
from lzero_async.priorzero.text import PriorSample, TextState, Turn

ACTIONS = ('unlock door with key', 'open door', 'go north', 'take lamp', 'look', 'eat the brass lamp slowly')


def a_state(number=0, actions=ACTIONS, turns=1):
    history = tuple(Turn(f'Cellar {turn}. It is dark. ' * (turn % 3 + 1), 'go up', turn / 2) for turn in range(turns))
    return TextState(f'Hall {number}. The door is locked. ' + 'You see a lamp. ' * number, actions, history)


def a_prior(trainable=True, **settings):
    settings = {'llm': 'tiny', 'learning_rate': 0.003, 'minibatch_size': 8, **settings}
    return CausalLMPrior(PriorConfig(**settings), trainable=trainable)


def samples_of(scores, advantages):
    """One for each advantage: of the first actions of the state that was scored."""
    return [
        PriorSample(scores.prompt_ids, action.token_ids, action.log_probs, advantage, scores.version)
        for action, advantage in zip(scores.actions, advantages)
    ]


def mean_log_probs(scores):
    return [sum(action.log_probs) / len(action.log_probs) for action in scores.actions]


def same_weights(one, other):
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)

"""CartPole whose pole may fall: every episode lasts 200 steps.

LightZero's CartPole ends when the pole falls, so two runs that learn differently also do different amounts of work.
Here every run makes the same environment steps, segments and updates, and only the schedule differs.
"""
import math

from ding.utils import ENV_REGISTRY
from zoo.classic_control.cartpole.envs.cartpole_lightzero_env import CartPoleEnv


@ENV_REGISTRY.register('cartpole_steady')
class SteadyCartPoleEnv(CartPoleEnv):

    def reset(self):
        observation = super().reset()
        self._env.unwrapped.theta_threshold_radians = math.inf
        self._env.unwrapped.x_threshold = math.inf
        return observation

"""train_unizero_segment_async: LightZero's train_unizero_segment, with its roles overlapping."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Tuple

from .run import run_training

if TYPE_CHECKING:
    import torch


def train_unizero_segment_async(
    input_cfg: Tuple[Any, Any],
    seed: int = 0,
    model: 'Optional[torch.nn.Module]' = None,
    model_path: Optional[str] = None,
    max_train_iter: Optional[int] = int(1e10),
    max_env_step: Optional[int] = int(1e10),
) -> Any:
    """
    Overview:
        Train UniZero or Sampled UniZero asynchronously. `policy.off_policy_degree` in the config says how far
        collecting may be ahead of training: 0 is exactly `lzero.entry.train_unizero_segment`.
    Arguments:
        - input_cfg (:obj:`Tuple[dict, dict]`): [main_config, create_config]; neither is changed.
        - seed (:obj:`int`): Random seed.
        - model (:obj:`Optional[torch.nn.Module]`): The model to train, instead of one made from the config.
        - model_path (:obj:`Optional[str]`): A LightZero checkpoint to begin with.
        - max_train_iter (:obj:`Optional[int]`): End once the learner has made this many updates.
        - max_env_step (:obj:`Optional[int]`): End once the collector has made this many environment steps.
    Returns:
        - policy (:obj:`Policy`): The learner's policy. Ctrl-C also ends a run in order, and returns it.
    Raises:
        - ConfigError: The config is refused, before anything has started.
        - RoleFailed: A role raised; what it raised is the cause. The last state is saved.
    """
    return run_training(input_cfg, seed, model, model_path, max_train_iter, max_env_step).policy

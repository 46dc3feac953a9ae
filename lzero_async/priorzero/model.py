"""PriorZeroModel: UniZero's model of texts, with the text encoder as it was trained."""
from __future__ import annotations

from typing import Any

from ding.utils import MODEL_REGISTRY
from lzero.model.unizero_model import UniZeroModel

from .frozen_encoder import FrozenEncoder


@MODEL_REGISTRY.register('PriorZeroModel')
class PriorZeroModel(UniZeroModel):  # type: ignore[misc]
    """LightZero gives every layer random weights when a world model is made, those of a pretrained text encoder, too,
    and has three names for them. Here the encoder is as it was trained, and no part of the model's own weights.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.representation_network.model
        object.__setattr__(self.representation_network, 'model', FrozenEncoder(kwargs['encoder_url']))

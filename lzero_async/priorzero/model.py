"""PriorZeroModel: UniZero's model of texts, with the text encoder as it was trained."""
from __future__ import annotations

from typing import Any

from ding.utils import MODEL_REGISTRY
from lzero.model.unizero_model import UniZeroModel


@MODEL_REGISTRY.register('PriorZeroModel')
class PriorZeroModel(UniZeroModel):  # type: ignore[misc]
    """LightZero gives every layer of the world model random weights when it is made, those of the pretrained text
    encoder, too. Here it gets its own back. It is not trained any further: no gradient reaches it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        from transformers import AutoModel

        encoder = self.representation_network.model
        encoder.load_state_dict(AutoModel.from_pretrained(kwargs['encoder_url'], local_files_only=True).state_dict())
        encoder.requires_grad_(False)

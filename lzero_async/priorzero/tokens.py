"""What a game says, as token ids of a fixed length: the observation of the world model."""
from __future__ import annotations

from typing import Any, Tuple

import numpy as np

from ..core.errors import ConfigError
from .installed import needed
from .text import TextState


class ObservationTokens:
    """A tokenizer of its own: those of transformers may not be shared by threads."""

    def __init__(self, tokenizer_path: str, length: int) -> None:
        transformers = needed('transformers', f'tokenizer_path {tokenizer_path!r}')
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                tokenizer_path, padding_side='right', truncation_side='right'
            )
        except (OSError, ValueError) as error:
            reason = (str(error).splitlines() or [''])[0]
            raise ConfigError(
                f'tokenizer_path must be a folder or name of a tokenizer, got {tokenizer_path!r}: {reason}'
            ) from error
        if self._tokenizer.pad_token_id is None:
            raise ConfigError(f'tokenizer_path must be a tokenizer with a padding token, got {tokenizer_path!r}')
        self._length = length

    def of(self, state: TextState) -> Tuple[Any, Any]:
        """Token ids and attention mask: what is seen, then the valid actions.

        Of two texts that together are too long, the end of the longer one is cut: both begin with what matters most.
        """
        tokens = self._tokenizer(
            state.observation, 'Valid actions: ' + '; '.join(state.valid_actions), truncation='longest_first',
            padding='max_length', max_length=self._length,
        )
        return np.array(tokens['input_ids'], dtype=np.int32), np.array(tokens['attention_mask'], dtype=np.int32)

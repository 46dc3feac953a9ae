"""FrozenEncoder: a pretrained text encoder that stays as it is, and reads no text twice."""
from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple

import torch

REMEMBERED = 50_000
"""Texts. Of each its tokens and a vector are kept, 3.5 kB with MiniLM and 256 tokens."""


class Encoded(NamedTuple):
    """Of what transformers' models return, what LightZero looks at: the first token of each text."""

    last_hidden_state: torch.Tensor


class FrozenEncoder:
    """Stands in for the encoder of LightZero's HFLanguageRepresentationNetwork. Any thread may call it.

    No module, on purpose: its weights are not trained, so they need not be published, saved, or kept once more in the
    target model. Copies of a model share it.
    """

    def __init__(self, path: str, remembered: int = REMEMBERED) -> None:
        from transformers import AutoModel

        self._path = path
        self._encoder = AutoModel.from_pretrained(path, local_files_only=True).eval().requires_grad_(False)
        self._remembered = remembered
        # Guards all that follows. A text is encoded outside of it, at worst by two threads.
        self._lock = threading.Lock()
        self._on: Dict[torch.device, Any] = {torch.device('cpu'): self._encoder}
        self._known: 'OrderedDict[bytes, torch.Tensor]' = OrderedDict()

    def __deepcopy__(self, memo: Any) -> 'FrozenEncoder':
        return self

    def __reduce__(self) -> Any:
        return FrozenEncoder, (self._path, self._remembered)

    def __call__(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> Encoded:
        """`ids` are token ids, one text a row; what is masked is padding at the end."""
        keys = [row.tobytes() for row in ids.cpu().numpy()]
        with self._lock:
            found = {key: self._known[key] for key in keys if key in self._known}
        new: Dict[bytes, int] = {key: place for place, key in enumerate(keys) if key not in found}
        if new:
            rows = list(new.values())
            found.update(zip(new, self._encode(ids[rows], attention_mask[rows])))
        with self._lock:
            for key, vector in found.items():
                self._known[key] = vector
                self._known.move_to_end(key)
            while len(self._known) > self._remembered:
                self._known.popitem(last=False)
        return Encoded(torch.stack([found[key] for key in keys]).to(ids.device).unsqueeze(1))

    def _encode(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> List[torch.Tensor]:
        length = max(1, int(attention_mask.sum(1).max()))  # the rest is padding, and changes nothing
        with torch.no_grad():
            output = self._placed(ids.device)(ids[:, :length], attention_mask=attention_mask[:, :length])
        # Copies: a view would keep all tokens of all texts of the batch.
        return [row.clone() for row in output.last_hidden_state[:, 0].cpu()]

    def _placed(self, device: torch.device) -> Any:
        with self._lock:
            if device not in self._on:
                self._on[device] = copy.deepcopy(self._encoder).to(device)
            return self._on[device]

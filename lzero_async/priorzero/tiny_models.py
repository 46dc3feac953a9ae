"""Two models small enough for a test: random weights, tokenizers trained here on a few sentences. They know nothing."""
from __future__ import annotations

import hashlib
import json
import re
import string
from collections import Counter
from typing import Any, Dict, List

import torch

from .installed import needed
from .prompts import SYSTEM, request
from .text import Turn

SENTENCES = (
    SYSTEM,
    request((Turn('A room.', 'go north', 1.0), Turn('A hall.', 'take key', -1.0)), 'A door.', ('open door', 'look')),
    'Now you see a small room with a wooden table, a brass lamp and a locked door to the north.',
    'The door is closed. The key turns in the lock with a click, and the door swings open.',
    'There is a garden here. A path leads west along the river to an old stone bridge.',
    'You take the lantern and light it. The cave is no longer dark, and you see a chest.',
    'You put the coin on the scale. Nothing happens. You are carrying a rope and some bread.',
    'The numbers on the wall are 0 1 2 3 4 5 6 7 8 9, and a clock says 10:34 or 5:29 or 8:17.',
    'It is pitch dark, and you cannot see a thing. Somewhere water drips from the ceiling.',
    'You go down the stairs into the cellar. It smells of earth and of apples.',
    'The guard looks at you and waits. You give the letter to the guard, who lets you pass.',
    'You have won the game. Your score is 50 of 50 points, in 120 moves. The end.',
    'You cannot go that way. You do not have that. That is already open. Taken. Dropped.',
    'north, south, east, west, up, down, in, out, look, wait, listen, inventory',
    'open door, close door, unlock door with key, lock door with key, go north, go south',
    'take key, take lamp, drop lamp, take all, open chest, open box, look under table',
    'read book, read letter, light lamp with match, push button, pull lever, turn dial',
    'eat bread, drink water, give coin to man, show ring to queen, climb tree, climb rope',
    'put gem in bag, insert coin in slot, cut rope with knife, tie rope to hook, enter house',
)
RANDOM = 'lzero_async_random'
"""In the config of a model, says that it knows nothing, also where only its folder is given."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLM_RECIPE: Dict[str, Any] = {
    'form': 1, 'seed': 1, 'vocabulary': 768, 'sentences': SENTENCES, 'template': CHAT_TEMPLATE,
    'special': ('<|endoftext|>', '<|im_start|>', '<|im_end|>'),
    'config': {
        'hidden_size': 64, 'intermediate_size': 128, 'num_hidden_layers': 2, 'num_attention_heads': 4,
        'num_key_value_heads': 2, 'max_position_embeddings': 4096, 'tie_word_embeddings': True,
        'initializer_range': 0.1,
    },
}
ENCODER_RECIPE: Dict[str, Any] = {
    'form': 1, 'seed': 2, 'vocabulary': 512, 'sentences': SENTENCES,
    'special': ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'),
    'config': {
        'hidden_size': 64, 'intermediate_size': 128, 'num_hidden_layers': 2, 'num_attention_heads': 4,
        'max_position_embeddings': 512, 'type_vocab_size': 2,
    },
}


def folder_name(kind: str, recipe: Dict[str, Any]) -> str:
    """Another one for another recipe, so that an old model is never taken for a new one."""
    return f'{kind}-{hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]}'


def make_tiny_llm(folder: str) -> None:
    """A Qwen2 with a byte-level BPE and a chat template."""
    transformers, tokenizers = needed('transformers', 'llm tiny'), needed('tokenizers', 'llm tiny')
    end, begin, stop = LLM_RECIPE['special']
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=LLM_RECIPE['vocabulary'], special_tokens=[end, begin, stop], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(list(SENTENCES), trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=stop, pad_token=end, additional_special_tokens=[begin],
        chat_template=CHAT_TEMPLATE,
    )
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None, **{RANDOM: True}, **LLM_RECIPE['config'],
    )
    _save(folder, transformers.Qwen2ForCausalLM, config, tokenizer, LLM_RECIPE['seed'])


def make_tiny_encoder(folder: str) -> None:
    """A BERT with a WordPiece of lower case."""
    transformers, tokenizers = needed('transformers', 'encoder tiny'), needed('tokenizers', 'encoder tiny')
    words = {word: index for index, word in enumerate(_pieces(ENCODER_RECIPE))}
    pieces = tokenizers.BertWordPieceTokenizer(words, lowercase=True)
    tokenizer = transformers.BertTokenizerFast(tokenizer_object=pieces._tokenizer, model_max_length=512)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **{RANDOM: True}, **ENCODER_RECIPE['config']
    )
    _save(folder, transformers.BertModel, config, tokenizer, ENCODER_RECIPE['seed'])


def _pieces(recipe: Dict[str, Any]) -> List[str]:
    """The most frequent words, and all characters for the others. A trainer's choice would vary from run to run."""
    characters = string.ascii_lowercase + string.digits + string.punctuation
    counts = Counter(re.findall(r'[a-z]+', ' '.join(recipe['sentences']).lower()))
    words = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
    pieces = [*recipe['special'], *characters, *(f'##{character}' for character in characters), *words]
    return pieces[:recipe['vocabulary']]


def _save(folder: str, model_class: Any, config: Any, tokenizer: Any, seed: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

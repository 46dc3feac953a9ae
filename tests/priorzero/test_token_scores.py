"""Shared prompts, padding and chunks change no number: all is compared with one plain pass per answer."""
import pytest

transformers = pytest.importorskip('transformers')

import torch  # noqa: E402

from lzero_async.priorzero.token_scores import Question, TokenScorer, answer_log_probs  # noqa: E402

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=50)


def a_model(kind):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        if kind == 'learned positions':  # where a token stands shows at once, unlike with rotary ones
            config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, initializer_range=0.3)
            return transformers.GPT2LMHeadModel(config).eval()
        window = dict(use_sliding_window=True, sliding_window=6, max_window_layers=1) if kind == 'window' else {}
        config = transformers.Qwen2Config(
            **SIZES, intermediate_size=64, num_key_value_heads=2, initializer_range=0.3, **window
        )
        return transformers.Qwen2ForCausalLM(config).eval()


@pytest.fixture(params=['rotary', 'learned positions', 'window'], scope='module')
def model(request):
    return a_model(request.param)


def questions():
    draw = torch.Generator().manual_seed(5)

    def ids(count):
        return tuple(torch.randint(0, 50, (count,), generator=draw).tolist())

    return [
        Question(ids(length), tuple(ids(size) for size in sizes))
        for length, sizes in ((9, (1, 4, 2)), (23, (3,)), (1, (1, 1)), (14, (5, 2, 2, 7)))
    ]


def naive(model, question):
    """One pass over prompt and answer for each answer, nothing padded, nothing kept."""
    found = []
    for answer in question.answers:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([question.prompt + answer]), use_cache=False).logits[0]
        rows = torch.log_softmax(logits, dim=-1)[len(question.prompt) - 1:-1]
        found.append([row[token].item() for row, token in zip(rows, answer)])
    return found


def assert_same(found, expected):
    assert [[len(answer) for answer in one] for one in found] == [[len(answer) for answer in one] for one in expected]
    for one, other in zip(found, expected):
        for answer, right in zip(one, other):
            assert answer == pytest.approx(right, abs=1e-4)


@pytest.mark.parametrize('max_tokens', [1, 40, 100_000])
def test_the_same_as_one_pass_per_answer(model, max_tokens):
    asked = questions()
    expected = [naive(model, question) for question in asked]
    assert_same(TokenScorer(model, max_tokens).scores(asked), expected)
    assert_same(TokenScorer(model, max_tokens).scores(asked[::-1]), expected[::-1])
    for question, right in zip(asked, expected):
        assert_same(TokenScorer(model, max_tokens).scores([question]), [right])


def test_answers_keep_their_order(model):
    question = questions()[3]
    turned = Question(question.prompt, question.answers[::-1])
    found, back = TokenScorer(model, 1000).scores([question, turned])
    assert_same([found], [back[::-1]])
    assert found != back


def test_a_prompt_goes_through_the_model_once(model, monkeypatch):
    passed = []
    forward = model.forward

    def counted(*args, **kwargs):
        passed.append(tuple(kwargs['input_ids'].shape))
        return forward(*args, **kwargs)

    counted.__signature__ = __import__('inspect').signature(forward)
    monkeypatch.setattr(model, 'forward', counted)
    asked = questions()[3]
    TokenScorer(model, 1000).scores([asked])
    assert passed == [(1, 14), (4, 6)]  # the prompt, then four answers of at most 7, whose last token asks nothing
    passed.clear()
    TokenScorer(model, 42).scores([asked])  # 2 * (14 + 7) tokens at most
    assert passed == [(1, 14), (2, 4), (2, 6)]


def test_the_pass_that_is_trained_gives_the_same_numbers(model):
    asked = questions()
    pairs = [(question.prompt, answer) for question in asked for answer in question.answers]
    log_probs, is_token = answer_log_probs(model, [prompt for prompt, _ in pairs], [answer for _, answer in pairs])
    right = [answer for question in asked for answer in naive(model, question)]
    assert log_probs.requires_grad and is_token.sum(dim=1).tolist() == [len(answer) for answer in right]
    for row, tokens, expected in zip(log_probs, is_token, right):
        assert row[tokens].tolist() == pytest.approx(expected, abs=1e-4)


def test_nothing_asked(model):
    assert TokenScorer(model, 100).scores([]) == []

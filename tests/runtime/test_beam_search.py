"""Beam search finds what transformers' `generate` finds: the same tokens, the same scores, the same order."""

from itertools import chain, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from slow_rows import slow_unless

from edgeformer.errors import RequestError
from edgeformer.runtime import GenerationConfig
from edgeformer.runtime.generation.beam_search import BeamSearch, Hypothesis, beam_search
from edgeformer.runtime.generation.sampling.logits_rules import Rules

VOCAB = 97
PAD, START, EOS, OTHER_EOS = 0, 0, 2, 9
RULES = tuple(Rules.__dataclass_fields__)

# Scores are sums of float32; the oracle keeps a cache where ours runs the decoder over whole prefixes.
TOLERANCE = 1e-5


def _t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(vocab_size=VOCAB, **sizes, tie_word_embeddings=False)
    return transformers.T5ForConditionalGeneration(config)


def _bart():
    sizes = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64}
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=VOCAB, **sizes, **layers))


MODELS = {"t5": (_t5, 1, 1.0), "bart": (_bart, 4, 1.5)}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    make, seed, gain = MODELS[request.param]
    torch.manual_seed(seed)
    model = make().eval()
    with torch.no_grad():
        # As they are initialised, models answer every source alike, with nearly flat logits.
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() == 1 or "norm" in name:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(gain * noise / parameter.shape[-1] ** 0.5)
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(VOCAB))
    # What these would ask by themselves is not what a test asks for.
    model.generation_config = transformers.GenerationConfig()
    return model


OF_ONE = pytest.mark.parametrize("model", ["t5"], indirect=True)
"""An option reads logits alone, so one model shows it; `test_any_options…` compares random options of both models."""


def _favour_ends(model, bias, eos=(EOS,)):
    """Raise the logits of end tokens: a little, and few sequences end before the limit; a lot, and most do."""
    with torch.no_grad():
        model.lm_head.bias.zero_()
        model.lm_head.bias[list(eos)] = bias


@pytest.fixture(scope="module")
def sources():
    """Four sources of unequal lengths, padded."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(10, VOCAB, (4, 9), generator=random)
    mask = (torch.arange(9) < torch.tensor([[9], [4], [6], [1]])).long()
    return SimpleNamespace(tokens=tokens.where(mask.bool(), PAD), mask=mask)


class PrefixDecoder:
    """Feeds a torch decoder the whole prefix of every row at every step: slow, and nothing to get wrong."""

    def __init__(self, model, sources, beams, prompt):
        self._model = model
        self._encoded = model.get_encoder()(input_ids=sources.tokens, attention_mask=sources.mask)
        self._encoded.last_hidden_state = self._encoded.last_hidden_state.repeat_interleave(beams, dim=0)
        self._mask = sources.mask.repeat_interleave(beams, dim=0)
        self._beams = beams
        self.prefixes = np.tile(prompt, (len(self._mask), 1))
        self.calls = []

    @torch.no_grad()
    def logits(self):
        output = self._model(
            encoder_outputs=self._encoded,
            attention_mask=self._mask,
            decoder_input_ids=torch.from_numpy(self.prefixes),
            use_cache=False,
        )
        return output.logits[:, -1].numpy()

    def decode_one_token(self, tokens):
        self.calls.append("step")
        self.prefixes = np.column_stack([self.prefixes, tokens])
        return self.logits()

    def reorder(self, parents):
        self.calls.append("reorder")
        assert (parents != np.arange(len(parents))).any(), "reordering nothing costs time"
        assert (parents // self._beams == np.arange(len(parents)) // self._beams).all(), "a beam left its source"
        self.prefixes = self.prefixes[parents]


def _ours(model, sources, *, prompt=(START,), eos=(EOS,), max_new_tokens=20, **options):
    rules = Rules(**{name: options.pop(name) for name in RULES if name in options})
    search = BeamSearch(**options)
    decoder = PrefixDecoder(model, sources, search.num_beams, prompt)
    results = beam_search(
        decoder,
        decoder.logits(),
        prompts=[prompt] * len(sources.tokens),
        search=search,
        max_new_tokens=max_new_tokens,
        eos=frozenset(eos),
        pad=PAD,
        rules=rules,
        texts=list(sources.tokens.numpy()),  # transformers gives its rules the padding, too
    )
    assert decoder.calls[-1:] in ([], ["step"]), "nothing reads what is reordered after the last step"
    return results


def _theirs(model, sources, *, prompt=(START,), eos=(EOS,), num_return_sequences=1, **options):
    """The hypotheses of `generate`, as (tokens, score) by source."""
    config = transformers.GenerationConfig(
        **({"max_new_tokens": 20} | options),
        num_return_sequences=num_return_sequences,
        eos_token_id=list(eos) or None,
        pad_token_id=PAD,
        decoder_start_token_id=START,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    output = model.generate(
        input_ids=sources.tokens,
        attention_mask=sources.mask,
        decoder_input_ids=torch.tensor([prompt] * len(sources.tokens)),
        generation_config=config,
    )
    new = [_until_end(row, eos) for row in output.sequences[:, len(prompt) :].tolist()]
    if config.num_beams == 1:
        # Greedy search has no scores of its own; these are its tokens' log-probabilities.
        each = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True).numpy()
        power = options.get("length_penalty", 1.0)
        scores = [row[: len(ids)].sum() / len(ids) ** power for row, ids in zip(each, new, strict=True)]
    else:
        scores = output.sequences_scores.tolist()
    pairs = list(zip(new, scores, strict=True))
    return [pairs[start : start + num_return_sequences] for start in range(0, len(pairs), num_return_sequences)]


def _until_end(tokens, eos):
    ends = [place for place, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens


def _compare(model, sources, **options):
    """Assert that both find the same; return ours, all sources' hypotheses in one list."""
    ours, theirs = _ours(model, sources, **options), _theirs(model, sources, **options)
    assert [len(source) for source in ours] == [len(source) for source in theirs]
    eos = options.get("eos", (EOS,))
    for source, expected in zip(ours, theirs, strict=True):
        assert [hypothesis.token_ids for hypothesis in source] == [tokens for tokens, _ in expected]
        np.testing.assert_allclose([hypothesis.score for hypothesis in source], [s for _, s in expected], TOLERANCE)
        for hypothesis in source:
            assert (hypothesis.finish_reason == "eos") == (hypothesis.token_ids[-1] in eos)
    return [hypothesis for source in ours for hypothesis in source]


def _lengths(hypotheses):
    return {len(hypothesis.token_ids) for hypothesis in hypotheses}


ENDS = list(product([2, 4], [True, False, "never"], [0.0, 0.6, 1.0, 2.0, -1.0]))


@OF_ONE
@pytest.mark.parametrize(("num_beams", "early_stopping", "length_penalty"), slow_unless(ENDS[::2], ENDS))
def test_the_best_hypotheses_are_those_of_transformers(model, sources, num_beams, early_stopping, length_penalty):
    found = []
    for bias in (3.0, 8.0):
        _favour_ends(model, bias)
        found += _compare(
            model,
            sources,
            num_beams=num_beams,
            early_stopping=early_stopping,
            length_penalty=length_penalty,
            num_return_sequences=num_beams,
        )
    assert {hypothesis.finish_reason for hypothesis in found} == {"eos", "length"}
    assert len(_lengths(found)) > 1, "hypotheses that all end together hide how ends are handled"


CONSTRAINED = [
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"min_new_tokens": 7},
    {"min_length": 7},
    {"forced_bos_token_id": 11},
    {"forced_eos_token_id": EOS},
    {"forced_bos_token_id": 11, "forced_eos_token_id": EOS, "no_repeat_ngram_size": 3, "length_penalty": 2.0},
    {"bad_words_ids": [[token] for token in range(20, 50)] + [[PAD], [60, 61], [70, 71, 72]]},
    {"suppress_tokens": list(range(30, 60))},
    {"begin_suppress_tokens": [EOS, OTHER_EOS, *range(40, 70)]},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.7},
    {"suppress_tokens": list(range(30, 60)), "renormalize_logits": True},
    {"repetition_penalty": 1.5, "renormalize_logits": True, "remove_invalid_values": True},
    {"exponential_decay_length_penalty": (1, 1.4)},
    {"sequence_bias": [[[token], 3.5] for token in range(30, 40)]},
    {"eos": (EOS, OTHER_EOS)},
    {"eos": (EOS, OTHER_EOS, 33, 34), "early_stopping": True},
    {"eos": (EOS, OTHER_EOS), "min_new_tokens": 5, "length_penalty": 0.0},
    {"eos": ()},
    {"length_penalty": 2.0, "early_stopping": "never"},
    {"max_new_tokens": 1},
    {"max_new_tokens": 2},
    {"max_new_tokens": 1, "eos": (EOS, OTHER_EOS)},
    {"prompt": (START, 17, 23), "no_repeat_ngram_size": 1, "max_new_tokens": 12},
    {"prompt": (START, 17), "forced_bos_token_id": 11, "begin_suppress_tokens": [EOS], "min_length": 6},
]


@OF_ONE
@pytest.mark.parametrize("num_beams", slow_unless([4], [1, 4]))
@pytest.mark.parametrize("options", CONSTRAINED, ids=str)
def test_rules_ends_and_limits_are_those_of_transformers(model, sources, num_beams, options):
    without = {name: options[name] for name in options if name in ("prompt", "max_new_tokens")}
    found, plain = [], []
    for bias in (1.0, 3.5):
        _favour_ends(model, bias, options.get("eos") or (EOS,))
        beams = {"num_beams": num_beams, "num_return_sequences": num_beams}
        found += _compare(model, sources, **beams, **options)
        plain += chain.from_iterable(_ours(model, sources, **beams, **without))
    assert options == without or found != plain, "options that change nothing are not compared"


def test_any_options_give_the_hypotheses_of_transformers(model, sources):
    random = np.random.default_rng(3)
    for _ in range(25):
        eos = [(EOS,), (EOS, OTHER_EOS)][random.integers(2)]
        _favour_ends(model, random.uniform(0, 8), eos)
        num_beams = int(random.integers(2, 7))
        options = {
            "num_beams": num_beams,
            "num_return_sequences": int(random.integers(1, num_beams + 1)),
            "length_penalty": float(random.uniform(-1, 2)),
            "early_stopping": [True, False, "never"][random.integers(3)],
            "max_new_tokens": int(random.integers(3, 20)),
            "eos": eos,
        }
        rules = {
            "no_repeat_ngram_size": int(random.integers(1, 4)),
            "min_new_tokens": int(random.integers(1, 4)),
            "forced_bos_token_id": 11,
            "forced_eos_token_id": EOS,
            "bad_words_ids": random.integers(0, VOCAB, (20, 1)).tolist() + random.integers(0, VOCAB, (9, 2)).tolist(),
            "suppress_tokens": random.integers(12, VOCAB, 20).tolist(),
            "begin_suppress_tokens": [EOS],
            "repetition_penalty": float(random.uniform(0.6, 1.6)),
        }
        _compare(model, sources, **options, **{name: rules[name] for name in rules if random.random() < 0.3})


def test_fewer_hypotheses_than_beams_are_the_best_ones(model, sources):
    _favour_ends(model, 5.0)
    for count in (1, 2, 3):
        _compare(model, sources, num_beams=4, num_return_sequences=count)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"length_penalty": 1.0}, {"length_penalty": 0.0}),
        ({"length_penalty": 0.6}, {"length_penalty": 0.7}),
        ({"early_stopping": True}, {"early_stopping": False}),
        ({"early_stopping": "never"}, {"early_stopping": False}),
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 3}),
        ({"eos": (EOS,)}, {"eos": (OTHER_EOS,)}),
        ({"max_new_tokens": 20}, {"max_new_tokens": 19}),
        ({"num_beams": 4}, {"num_beams": 3}),
    ],
    ids=str,
)
def test_the_comparison_notices_other_options(model, sources, options, wrong):
    # Negative control.
    _favour_ends(model, 3.0)
    beams = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 1.0}
    ours, theirs = _ours(model, sources, **(beams | wrong)), _theirs(model, sources, **(beams | options))
    pairs = zip(chain.from_iterable(ours), chain.from_iterable(theirs), strict=True)
    assert any(
        hypothesis.token_ids != tokens or abs(hypothesis.score - score) > 100 * TOLERANCE * abs(score)
        for hypothesis, (tokens, score) in pairs
    )


def test_a_source_does_not_depend_on_its_neighbours(model, sources):
    # Some are done steps before the others.
    _favour_ends(model, 3.0)
    options = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 1.5}
    together = _ours(model, sources, **options)
    for index, expected in enumerate(together):
        # Without padding too.
        length = int(sources.mask[index].sum())
        alone = SimpleNamespace(
            tokens=sources.tokens[index : index + 1, :length], mask=sources.mask[index : index + 1, :length]
        )
        [found] = _ours(model, alone, **options)
        assert [hypothesis.token_ids for hypothesis in found] == [hypothesis.token_ids for hypothesis in expected]
    assert len({len(source[0].token_ids) for source in together}) > 2


class TableDecoder:
    """Logits that depend on the last token alone; records what it is fed."""

    def __init__(self, table, dtype=np.float32):
        self.table = np.asarray(table, dtype)
        self.fed = []
        self.reordered = []

    def decode_one_token(self, tokens):
        self.fed.append(tokens.tolist())
        return self.table[tokens]

    def reorder(self, parents):
        self.reordered.append(parents.tolist())


def _search(decoder, *, starts=(0,), max_new_tokens=4, eos=frozenset({3}), rules=None, **options):
    search = BeamSearch(**options)
    first = decoder.table[np.repeat(starts, search.num_beams)]
    return beam_search(
        decoder,
        first,
        prompts=[[start] for start in starts],
        search=search,
        max_new_tokens=max_new_tokens,
        eos=eos,
        pad=7,
        rules=rules,
    )


def _table(seed=0, size=8):
    return 2 * np.random.default_rng(seed).standard_normal((size, size))


def test_beam_rows_of_a_finished_source_are_fed_padding():
    table = np.full((8, 8), -20.0)
    table[1, 3] = 0  # 1 is followed by the end
    table[0, 4:7] = table[4:7, 4:7] = 0
    decoder = TableDecoder(table)
    ended, running = _search(decoder, starts=(1, 0), num_beams=1, max_new_tokens=4)
    assert [ended[0].token_ids, ended[0].finish_reason] == [[3], "eos"]
    assert [running[0].token_ids, running[0].finish_reason] == [[4, 4, 4, 4], "length"]
    assert decoder.fed == [[7, 4]] * 3
    assert decoder.reordered == []


def test_beams_that_stay_in_their_places_are_not_reordered():
    # From any token, two are likely: 4 goes on as 4, 5 as 5.
    table = np.full((8, 8), -9.0)
    table[0, [4, 5]] = [1, 0]
    table[4, 4] = table[5, 5] = 5
    decoder = TableDecoder(table)
    [found] = _search(decoder, num_beams=2, num_return_sequences=2)
    assert [hypothesis.token_ids for hypothesis in found] == [[4] * 4, [5] * 4]
    assert decoder.fed == [[4, 5]] * 3
    assert decoder.reordered == []
    # Once 5 is followed by what is likelier than anything after 4, its row becomes the first.
    table[4], table[5, 5] = 0, 20
    decoder = TableDecoder(table)
    _search(decoder, num_beams=2)
    assert decoder.reordered[0] == [1, 0]
    assert len(decoder.reordered) < len(decoder.fed)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_logits_of_half_precision_are_searched_in_float32(num_beams):
    table = _table().astype(np.float16)
    half = _search(TableDecoder(table, np.float16), num_beams=num_beams, num_return_sequences=num_beams)
    assert half == _search(TableDecoder(table, np.float32), num_beams=num_beams, num_return_sequences=num_beams)


def test_the_decoders_logits_are_left_alone():
    decoder = TableDecoder(_table())
    first = decoder.table[[0, 0]]
    first.flags.writeable = False
    options = {"search": BeamSearch(num_beams=2), "max_new_tokens": 3, "eos": frozenset({3}), "pad": 7}
    beam_search(decoder, first, prompts=[[0]], rules=Rules(suppress_tokens=[1]), **options)


def test_of_equal_scores_the_first_beam_and_the_lowest_token_win():
    ones = np.random.default_rng(0).integers(0, 2, 64)
    decoder = TableDecoder(np.tile(ones, (64, 1)))
    options = {"num_beams": 40, "num_return_sequences": 40, "eos": frozenset()}
    order = [*np.flatnonzero(ones == 1).tolist(), *np.flatnonzero(ones == 0).tolist()][:40]
    [found] = _search(decoder, max_new_tokens=1, **options)
    assert [hypothesis.token_ids for hypothesis in found] == [[token] for token in order]
    [found] = _search(decoder, max_new_tokens=2, **options)
    assert [hypothesis.token_ids for hypothesis in found[:3]] == [[order[0], token] for token in order[:3]]


@pytest.mark.parametrize("length_penalty", [-1.0, -0.3, 0.0])
def test_never_stopping_early_promises_nothing_without_gain(length_penalty):
    # As in transformers: the best that a beam can become is then what it is now.
    for seed in range(100):
        options = {"num_beams": 2, "num_return_sequences": 2, "length_penalty": length_penalty, "max_new_tokens": 12}
        decoders = [TableDecoder(4 * _table(seed)) for _ in range(2)]
        never, false = (
            _search(decoder, early_stopping=early_stopping, **options)
            for decoder, early_stopping in zip(decoders, ("never", False), strict=True)
        )
        assert never == false
        assert decoders[0].fed == decoders[1].fed


def test_what_the_rules_leave_no_room_for_is_not_returned():
    # transformers fills up with copies and padding of scores about -1e9.
    rules = Rules(forced_bos_token_id=5, forced_eos_token_id=3)
    [found] = _search(TableDecoder(_table()), num_beams=4, num_return_sequences=4, max_new_tokens=2, rules=rules)
    assert found == [Hypothesis(token_ids=[5, 3], score=0.0, finish_reason="eos")]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_rules_that_leave_nothing_are_an_error(num_beams):
    with pytest.raises(
        RequestError, match=r"^no token can follow: the rules ban every one, .* Relax suppress_tokens, "
    ):
        _search(TableDecoder(_table()), num_beams=num_beams, rules=Rules(suppress_tokens=range(8)))


def test_what_ended_before_the_rules_left_nothing_is_returned():
    # Each token may come once, and 3 ends: after 8 tokens nothing can follow.
    [found] = _search(
        TableDecoder(_table()), num_beams=40, max_new_tokens=30, rules=Rules(no_repeat_ngram_size=1), eos=frozenset({3})
    )
    assert found[0].finish_reason == "eos"
    assert len(set(found[0].token_ids)) == len(found[0].token_ids) <= 7


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("num_beams", [1, 2])
def test_logits_that_are_not_finite_are_an_error(num_beams, value):
    table = _table()
    table[4:, 2] = value
    table[0, 4:] += 20
    with pytest.raises(RequestError, match=r"the model's logits are not finite\. .* export it in another\.$"):
        _search(TableDecoder(table), num_beams=num_beams)


def test_tokens_whose_logit_is_minus_infinity_never_come():
    table = _table()
    table[:, 3:] = -np.inf
    [found] = _search(TableDecoder(table), num_beams=2, num_return_sequences=2)
    assert all(set(hypothesis.token_ids) <= {0, 1, 2} for hypothesis in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, r"^num_beams is 0; it must be between 1 \(greedy\) and 65,536\.$"),
        ({"length_penalty": float("inf")}, r"^length_penalty is inf; it must be finite; 0 is off\.$"),
        ({"early_stopping": "ever"}, r"^early_stopping is 'ever'; it must be true, false or \"never\"\.$"),
        (
            {"num_beams": 2, "num_return_sequences": 3},
            r"^num_return_sequences is 3; it must be between 1 and num_beams, which is 2\. Raise num_beams",
        ),
        ({"num_return_sequences": 0}, r"^num_return_sequences is 0; it must be between 1 and num_beams"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(RequestError, match=message):
        sequences = options.pop("num_return_sequences", 1)
        GenerationConfig(**options).beam_search(sequences)


def test_a_request_that_fits_no_model_is_refused():
    with pytest.raises(RequestError, match=r"^max_new_tokens is 0; it must be at least 1\.$"):
        _search(TableDecoder(_table()), max_new_tokens=0)
    with pytest.raises(RequestError, match=r"^forced_bos_token_id has the token id 8, outside 0 to 7, the model's"):
        _search(TableDecoder(_table()), rules=Rules(forced_bos_token_id=8))

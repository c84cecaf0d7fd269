"""Tokenizers of the two kinds that language models come with, made here so that no test needs the network."""

import threading

import pytest
from picture_samples import encoded, image
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from edgeformer.runtime.text.tokenizer import Tokenizer


class Capturing:
    """A session that does what onnxruntime's CUDA provider does with CUDA graphs.

    A run that captures runs three times, and a replay goes over the addresses of the run that was captured, in the
    thread that captured it. runs: how often it ran, by the number of the graph.
    """

    def __init__(self, session):
        self._session = session
        self._of_thread = threading.local()
        self.runs = {}

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run_with_iobinding(self, binding, options=None):
        if options is None:
            return self._session.run_with_iobinding(binding)
        graph, captured = options.get_run_config_entry("gpu_graph_id"), vars(self._of_thread)
        times = 1 if graph in captured else 3
        for _ in range(times):
            self._session.run_with_iobinding(captured.setdefault(graph, binding))
        self.runs[graph] = self.runs.get(graph, 0) + times


SENTENCES = [
    "The quick brown fox jumps over the lazy dog.\nThe dog sleeps.",
    "Où êtes-vous, garçon ? L'été est déjà fini, voilà.",
    "你好,世界!今天天气很好,我们去公园散步。",
    "Emoji: 😀🎉 and a family 👩‍👩‍👧, done.",
]


@pytest.fixture(scope="session")
def sentences():
    return SENTENCES


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory):
    """As in GPT-2, Llama 3 and Qwen: any byte is a token, characters may be cut anywhere."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES * 3, trainer)
    return _save(backend, tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def byte_fallback(tmp_path_factory):
    """As in Llama 2: ▁ for spaces, and bytes as tokens of their own for characters outside the vocabulary.

    One token has no text, as the holes that some vocabularies fill up.
    """
    backend = Backend(_byte_fallback_model())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return _save(backend, tmp_path_factory.mktemp("byte_fallback"))


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory):
    """The same vocabulary under the Metaspace pre-tokenizer and decoder, which drop the first token's ▁."""
    backend = Backend(_byte_fallback_model())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return _save(backend, tmp_path_factory.mktemp("metaspace"))


@pytest.fixture(scope="session", params=["byte_level", "byte_fallback", "metaspace"])
def tokenizer(request):
    """Each of the tokenizers in turn."""
    return request.getfixturevalue(request.param)


def _byte_fallback_model():
    letters = sorted(set("".join(SENTENCES[:2])) - {" ", "\n"})
    words = ["▁", "▁T", "▁Th", "▁The", "▁d", "▁do", "▁dog", "▁é", "▁▁", "ou", "你", "好", ""]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *words]
    merges = [("▁", "T"), ("▁T", "h"), ("▁Th", "e"), ("▁", "d"), ("▁d", "o"), ("▁do", "g"), ("▁", "é"), ("▁", "▁")]
    return models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[*merges, ("o", "u")],
        byte_fallback=True,
        unk_token="<unk>",
        fuse_unk=True,
    )


def _save(backend, folder):
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Three pictures as files."""
    folder = tmp_path_factory.mktemp("pictures")
    for name, mode in (("a", "RGB"), ("b", "RGBA"), ("c", "L")):
        (folder / f"{name}.png").write_bytes(encoded(image(40, 50, mode, seed=ord(name))))
    return [folder / f"{name}.png" for name in "abc"]


@pytest.fixture(scope="session")
def capturing():
    """The class of a session around another one, which captures and replays as on CUDA."""
    return Capturing

"""The base class of models: manifest, provider, the session of the main graph, tokenizer."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.request_values import flag, is_list, shown, text_or_ids
from edgeformer.runtime.sessions.graphs.int8_cache import with_int8_cache
from edgeformer.runtime.sessions.kernel_report import KernelReport, report_kernels
from edgeformer.runtime.sessions.kernels import choose_kernels
from edgeformer.runtime.sessions.prepacked.prepacked_graphs import graph_file, open_graph
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.providers.provider_options import checked
from edgeformer.runtime.sessions.session import SessionSettings, check_tensors, choose_provider
from edgeformer.runtime.text.tokenizer import Tokenizer

Text = str | Sequence[int]
"""A text or its token ids."""


class Model:
    """A model from a bundle, made by `load`; several threads may call it at once, unless `captures`.

    `Engine` runs the requests of threads together, which is faster. A process that is forked from this one can use the
    model if it was loaded with threads=1; otherwise its calls raise RequestError.

    provider: where it runs. captures: whether CUDA graphs replay its steps. tokenizer: None for a bundle
    without one, which takes token ids only.
    """

    def __init__(self, folder: Path, manifest: Manifest, settings: SessionSettings):
        self.folder = folder
        self._options = checked(settings.options)
        self.provider = choose_provider(settings.provider, manifest, self._options)
        self._kernel_choice = choose_kernels(self.provider, flag("kernels", settings.kernels))
        if settings.cache_precision is not None:
            manifest = with_int8_cache(folder, manifest, settings.cache_precision, self._kernel_choice)
        self.manifest = manifest
        self._threads = settings.threads
        self.captures = sessions_of(self.provider).captures(self._options)
        if self.captures and (manifest.form != "decoder" or manifest.plan.cache_form == "dynamic"):
            has = "a dynamic cache" if manifest.form == "decoder" else f"a model for {manifest.task}"
            raise RequestError(
                "enable_cuda_graph is for decoder-only models with a static cache, whose steps find everything at the "
                f"same addresses; {folder} has {has}."
            )
        self.session: Any = self._open_graph(manifest.step_graphs[-1], self.captures)
        if manifest.form != "encoder":
            tensors = manifest.cache.tensors("" if manifest.encoder_graph is None else "decoder.")
            inputs = ["input_ids", *(tensor.past for tensor in tensors)]
            check_tensors(
                self.session, manifest.step_graphs[-1], inputs, ["logits", *(each.present for each in tensors)]
            )
        placeholder = manifest.placeholder
        prompt_text = None if placeholder is None else placeholder.prompt_text
        self.tokenizer = Tokenizer(folder, prompt_text) if "tokenizer.json" in manifest.files else None

    def _open_graph(self, graph: str, captures: bool = False) -> Any:
        """Open a session of a graph of the bundle, named by its path within the folder; captures: as CUDA graphs."""
        options = self._options
        if options is not None and not captures:
            options = options.without_graphs()
        return open_graph(self.folder, self.manifest, graph, self.provider, self._threads, self._kernel_choice, options)

    @cached_property
    def kernels(self) -> KernelReport:
        """The report of what runs the graphs' functions: kernels of edgeformer-kernels, or their bodies, and why."""
        return report_kernels(self.folder, self.manifest, self._kernel_choice)

    @property
    def runs_on_kernels(self) -> bool:
        """Whether kernels of our own do all of the heavy work of the main graph."""
        graph = self.manifest.step_graphs[-1]
        return self._kernel_choice.run_all(graph_file(self.folder, self.manifest, graph, self._kernel_choice))

    def encode(
        self, text: Text, what: str = "prompt", vocab_size: int | None = None, context_length: int | None = None
    ) -> list[int]:
        """Return the token ids of a text, or given ids, checked against the vocabulary.

        what: names the text in errors. vocab_size, context_length: None for the model's; a text far beyond the context
        is not encoded to its end. Raises RequestError for anything but a text or a list of whole numbers, for no
        tokens, and for ids outside the vocabulary, and PromptLengthError for a text far beyond the context.
        """
        tokens = text_or_ids(what, text)
        if isinstance(tokens, str):
            most = context_length or self.manifest.context_length
            tokens = self.require_tokenizer().encode(tokens, most_tokens=most, what=what)
        vocab_size = vocab_size or self.manifest.vocab_size
        if not tokens:
            raise RequestError(f"the {what} is empty; give at least one token.")
        if min(tokens) < 0 or max(tokens) >= vocab_size:
            first = next(token for token in tokens if not 0 <= token < vocab_size)
            spelled = f" ({self.require_tokenizer().backend.id_to_token(first)})" if isinstance(text, str) else ""
            raise RequestError(
                f"the {what} has token ids outside 0 to {vocab_size - 1}, the model's vocabulary: {first}{spelled}."
            )
        return tokens

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer. Raises RequestError for a bundle without one."""
        if self.tokenizer is None:
            raise RequestError(
                f"{self.folder} has no tokenizer.json, so it takes token ids, not text. To use text, put the model's "
                "tokenizer.json beside its config.json and export again."
            )
        return self.tokenizer


def output_names(session: Any, outputs: Any) -> list[str]:
    """Return the names of outputs of a graph that a call asks for, None for all. Raises RequestError for others."""
    known = [output.name for output in session.get_outputs()]
    if outputs is None:
        return known
    if not is_list(outputs):
        raise RequestError(f"outputs is {shown(outputs)}; it must be a list of names, or None for all.")
    if len(outputs) == 0:
        raise RequestError(f"outputs is empty; name at least one of {', '.join(known)}, or give None for all.")
    unknown = [name for name in outputs if not isinstance(name, str) or name not in known]
    if unknown:
        raise RequestError(f"there is no output {unknown[0]!r}; there are {', '.join(known)}.")
    return list(outputs)


def is_batch(texts: Any) -> bool:
    """Return whether the argument is a sequence of texts (or of token ids of each) and not one text."""
    return is_list(texts) and len(texts) > 0 and (isinstance(texts[0], str) or is_list(texts[0]) or texts[0] is None)

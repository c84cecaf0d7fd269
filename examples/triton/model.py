"""A model of Triton's backend `python`: requests share an `Engine`, and their texts are streamed.

Triton calls `execute` with requests as they come. It returns at once; the engine's thread sends the pieces of a text.
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from edgeformer.errors import EdgeformerError
from edgeformer.runtime import Engine, load


class TritonPythonModel:
    """A bundle beside this file, with its engine."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the bundle; Triton calls this once."""
        self._engine = Engine(load(Path(__file__).parent / "bundle", "cpu"))

    def execute(self, requests: list[Any]) -> None:
        """Submit requests to the engine."""
        for request in requests:
            answer = Answer(request.get_response_sender())
            prompt = triton.get_input_tensor_by_name(request, "prompt").as_numpy().item().decode()
            limit = triton.get_input_tensor_by_name(request, "max_tokens")
            options = {} if limit is None else {"max_new_tokens": int(limit.as_numpy().item())}
            try:
                self._engine.submit(prompt, **options).add_listener(answer.send)
            except EdgeformerError as error:
                answer.end(error)

    def finalize(self) -> None:
        """Cancel what runs; Triton calls this at its end."""
        self._engine.close(drain=False)


class Answer:
    """Sends what a stream has to Triton, and its end once: the first call may come from another thread."""

    def __init__(self, sender: Any) -> None:
        self._sender, self._lock, self._ended = sender, threading.Lock(), False

    def send(self, stream: Any) -> None:
        """Send the tokens that are there, and the end behind them."""
        with self._lock:
            if self._ended:
                return
            events, ended = stream.poll()
            for event in events:
                if event.text:
                    text = triton.Tensor("text", np.array([event.text.encode()], dtype=object))
                    self._sender.send(triton.InferenceResponse([text]))
            if ended:
                self._end(stream.error)

    def end(self, error: BaseException | None) -> None:
        """End the answer without a stream."""
        with self._lock:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._ended = True
        final = triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if error is None:
            self._sender.send(flags=final)
        else:
            self._sender.send(triton.InferenceResponse([], triton.TritonError(str(error))), flags=final)

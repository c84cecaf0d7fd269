"""All clients, by their names in the report."""

from pathlib import Path

from verification.client_programs.browser import BrowserClient
from verification.client_programs.client import DECODERS_AND_SEQ2SEQ, EXAMPLES, Client
from verification.client_programs.programs import CppClient, DotnetClient, NodeClient, PythonClient

HERE = Path(__file__).parent

CLIENTS: dict[str, Client] = {
    "transformers": PythonClient(
        "transformers",
        HERE / "torch_reference.py",
        ("torch", "transformers"),
        ("torch", "transformers"),
        "pip install torch transformers",
        reads_checkpoint=True,
        tasks=DECODERS_AND_SEQ2SEQ,
    ),
    "onnxruntime": PythonClient(
        "onnxruntime",
        EXAMPLES / "python_onnxruntime.py",
        ("numpy", "onnxruntime", "tokenizers"),
        ("onnxruntime", "numpy"),
        "pip install onnxruntime tokenizers numpy",
    ),
    "onnxruntime-genai": PythonClient(
        "onnxruntime-genai",
        EXAMPLES / "genai.py",
        ("onnxruntime_genai",),
        ("onnxruntime-genai",),
        "pip install onnxruntime-genai",
    ),
    "transformers.js (Node)": NodeClient(),
    "transformers.js (browser)": BrowserClient(),
    "onnxruntime (C++)": CppClient(),
    "onnxruntime (C#)": DotnetClient(),
    "Optimum": PythonClient(
        "Optimum",
        HERE / "optimum_client.py",
        ("optimum.onnxruntime", "torch"),
        ("optimum", "optimum-onnx", "transformers"),
        "PYTHON -m pip install 'optimum-onnx[onnxruntime]', in an environment of its own, and name it with "
        "--python Optimum=PYTHON",
        tasks=DECODERS_AND_SEQ2SEQ,
    ),
}

"""The runtimes that are compared, and what each needs to be installed."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent

CACHE_PRECISION = "BENCHMARK_CACHE_PRECISION"
"""The environment variable that tells edgeformer the type of its cache beside quantized weights."""
DEFAULT_CACHE = "fp16"

OURS = "edgeformer"

IMATRIX = "BENCHMARK_IMATRIX"
"""The environment variable that tells llama.cpp's converter the file of the importance matrix."""
WITH_IMATRIX = ", importance matrix"
"""The ending of the formats that are made with it."""

LLAMA_CPP_FORMATS = (
    *("Q6_K", "Q5_1", "Q5_K_M", "Q5_K_S", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q3_K_L", "Q3_K_M", "IQ4_NL", "IQ4_XS"),
    *("IQ3_M", "IQ3_XXS", "IQ3_S", "Q3_K_S", "TQ2_0", "TQ1_0", "Q2_0"),
)
"""Formats of the peer llama.cpp besides those of its precisions. Rows that 256 does not divide make some of them equal:
Q2_K is Q3_K_S then, and IQ3_XS is IQ3_S."""
IMATRIX_FORMATS = tuple(f"{form}{WITH_IMATRIX}" for form in ("Q4_0", *LLAMA_CPP_FORMATS, "Q2_K_S", "IQ2_XXS"))


@dataclass(frozen=True)
class Peer:
    """A runtime.

    Attributes:
        imports: modules that its interpreter must have.
        packages: distributions whose versions are reported.
        precisions: the precisions it supports → its own names for them.
        recipe: a shell line that installs it into the environment of an interpreter PYTHON.
        formats: further formats of weights that quantization_loss.py measures, by its own names.
        imatrix_formats: those that it measures where an importance matrix is given.
        weights: a glob pattern of the files that hold graph and weights.
        converts: whether it writes a model of its own instead of reading the checkpoint.
        keep: whether a converted model is reused until the checkpoint or a version changes.
    """

    file: Path
    imports: tuple[str, ...]
    packages: tuple[str, ...]
    precisions: dict[str, str]
    recipe: str
    weights: str
    converts: bool = True
    keep: bool = True
    formats: tuple[str, ...] = ()
    imatrix_formats: tuple[str, ...] = ()


PEERS: dict[str, Peer] = {
    OURS: Peer(
        FOLDER / "edgeformer.py",
        ("edgeformer", "torch", "onnxruntime"),
        ("edgeformer", "onnxruntime"),
        {"fp32": "fp32", "int8": "int8 blocks of 128", "int4": "int4 blocks of 128"},
        "PYTHON -m pip install -e '.[cpu,export]'",
        "bundle/onnx/*",
        keep=False,  # its version does not change during development
    ),
    "onnxruntime-genai": Peer(
        FOLDER / "onnxruntime_genai.py",
        ("onnxruntime_genai", "torch", "transformers", "onnx_ir"),
        ("onnxruntime-genai", "onnxruntime"),
        {"fp32": "fp32", "int8": "int8 blocks of 32", "int4": "int4 blocks of 32"},
        "PYTHON -m pip install onnxruntime-genai onnx-ir torch transformers",
        "model.onnx*",
    ),
    "llama.cpp": Peer(
        FOLDER / "llama_cpp.py",
        ("llama_cpp", "gguf"),
        ("llama-cpp-python",),
        {"fp32": "F32", "int8": "Q8_0", "int4": "Q4_0"},
        "CMAKE_ARGS=-DGGML_NATIVE=ON PYTHON -m pip install llama-cpp-python gguf",
        "model.gguf",
        formats=LLAMA_CPP_FORMATS,
        imatrix_formats=IMATRIX_FORMATS,
    ),
    "OpenVINO GenAI": Peer(
        FOLDER / "openvino_genai.py",
        ("openvino_genai", "optimum.intel", "nncf"),
        ("openvino-genai", "optimum-intel", "nncf"),
        {"fp32": "fp32", "int8": "int8", "int4": "int4 groups of 64"},
        "PYTHON -m pip install openvino-genai 'optimum-intel[openvino]'",
        "openvino_model.*",
    ),
    "CTranslate2": Peer(
        FOLDER / "ctranslate2.py",
        ("ctranslate2", "torch", "transformers"),
        ("ctranslate2", "transformers"),
        {"fp32": "float32", "int8": "int8"},
        "PYTHON -m pip install ctranslate2 'transformers<5' torch",
        "model.bin",
    ),
    "transformers": Peer(
        FOLDER / "transformers_eager.py",
        ("torch", "transformers"),
        ("transformers", "torch"),
        {"fp32": "float32"},
        "PYTHON -m pip install torch transformers",
        "*.safetensors",
        converts=False,
    ),
}
"""Peers by the names that --peer and --only take, in the order of the tables."""

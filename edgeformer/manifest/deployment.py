"""Deployments: where a bundle is to run, which options that proposes, and which files it has a use for.

What a user asks for takes precedence over what a deployment proposes. A bundle for no particular deployment has every
file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from edgeformer.config import ModelConfig
from edgeformer.errors import ExportError
from edgeformer.manifest.parts import CachePrecision, OpSet, Precision
from edgeformer.manifest.providers import ProviderName, find_provider
from edgeformer.manifest.quantization import HEADS, Activations, QuantizationOverrides

DeploymentName = Literal["server", "desktop", "web", "mobile"]
"""Where a bundle can be made to run."""

LARGEST_ARRAY = 0x7FE00000
"""Bytes of an array in Chrome, into which a page loads a file.

Source: onnxruntime.ai/docs/tutorials/web/large-models.html
"""

OPERATORS_FILE = "required_operators_and_types.config"
"""Lists the kernels that a reduced build of onnxruntime needs for graphs in ORT format."""

TEMPLATE, MORE_TEMPLATES, PROCESSOR_TEMPLATE = "chat_template.jinja", "additional_chat_templates", "chat_template.json"
"""Where Hugging Face keeps chat templates: one, a folder of named ones, and that of a processor."""

READ_TODAY = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", TEMPLATE, PROCESSOR_TEMPLATE)
"""Files of a Hugging Face folder that clients of today read; older ones look for special tokens in one more."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Options for one kind of model.

    head, activations: as in `QuantizationOverrides`. cache: data type of a cache, where it can have that.
    """

    precision: Precision
    head: str | None = None
    activations: Activations | None = None
    cache: CachePrecision | None = None

    def completed(self, overrides: QuantizationOverrides) -> QuantizationOverrides:
        """Return overrides for weights of this precision, completed by what is proposed.

        Per-token activations are not proposed where another block or zero points are asked for: they allow neither. Nor
        is a head in int6 with zero points, which it cannot have.
        """
        activations, head = overrides.activations, self.head
        if activations is None and overrides.block is None and overrides.symmetric is None:
            activations = self.activations
        if head in HEADS and overrides.symmetric is False:
            head = "int8"
        return replace(overrides, head=overrides.head or head, activations=activations)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A place where bundles run: the options that it proposes, and the files that it has a use for.

    Attributes:
        steps: options proposed for models whose time goes to steps of single tokens.
        texts: options proposed for all others.
        on_devices: steps and texts of every device that there can be, whose kernels take weights in blocks.
        block_kernels: whether its onnxruntime has kernels for products and gathers of matrices that are quantized in
            blocks; without them gathers are made of primitive ops, and embeddings and heads quantize activations per
            token as well.
        primitive_gathers: whether gathers are made of primitive ops in any case.
        shared_data: whether graphs may share one file of weights.
        largest_data: bytes that a file of weights may have.
        ort_format: whether graphs are .ort files, which contain their weights.
        windowed: whether models with windows get a windowed graph too.
        certificate: whether the bundle has the report of its verification.
        clients: whose configs are written.
        copied_files: copied from the model's folder.
    """

    name: DeploymentName | None
    steps: Proposal
    texts: Proposal
    on_devices: Mapping[ProviderName, tuple[Proposal, Proposal]] = field(default_factory=dict)
    block_kernels: bool = True
    primitive_gathers: bool = False
    shared_data: bool = True
    largest_data: int | None = None
    ort_format: bool = False
    windowed: bool = True
    certificate: bool = True
    clients: tuple[str, ...] = ("transformers.js", "onnxruntime-genai")
    copied_files: tuple[str, ...] = (*READ_TODAY, "special_tokens_map.json")

    def __str__(self) -> str:
        """Describe what the deployment proposes for decoders, in a few words."""
        proposal = self.steps
        parts = [proposal.precision, f"a head in {proposal.head}" if proposal.head else ""]
        parts += ["activations per token" if proposal.activations == "per_token" else ""]
        parts += [f"a cache in {proposal.cache}" if proposal.cache else ""]
        parts += [".ort files" if self.ort_format else ""]
        return f"{self.name}: {', '.join(filter(None, parts))}"

    def on(self, provider: ProviderName) -> "Deployment":
        """Return the deployment where the graphs run on a provider: gaps in the host's kernels are not a device's."""
        if not find_provider(provider).on_device:
            return self
        return replace(self, block_kernels=True, primitive_gathers=False)

    def proposal(self, config: ModelConfig | None, ops: OpSet, provider: ProviderName) -> Proposal:
        """Return what the deployment proposes for a kind of model and these kernels.

        config: None for a decoder whose module is not ours. Raises ExportError where there is no such provider.
        """
        runs_on = find_provider(provider)
        if runs_on.on_device:
            if provider not in self.on_devices:
                raise ExportError(
                    f"the deployment {self.name} has no {runs_on.title}. Leave provider {provider} out, or the "
                    "deployment."
                )
            steps, texts = self.on_devices[provider]
            return steps if config is None or config.steps else texts
        if ops != "ort":  # which alone has quantized products
            return Proposal(precision="fp32")
        return self.steps if config is None or config.steps else self.texts


_PLAIN = Proposal(precision="fp32")
_HALF = Proposal(precision="fp16")
_PER_TOKEN = Proposal(precision="int8", activations="per_token")
_IN_BLOCKS = (Proposal(precision="int4", head="int8"), Proposal(precision="int8"))

ANYWHERE = Deployment(
    name=None, steps=_PLAIN, texts=_PLAIN, on_devices={"cuda": (_PLAIN, _PLAIN), "webgpu": (_PLAIN, _PLAIN)}
)
"""No particular deployment: nothing is quantized that nobody asked to have quantized."""

# A server has plenty of memory, and requests come in batches: int8 has a fortieth of int4's loss, and products of many
# rows are fastest between integers. A cache of float16 takes edgeformer-kernels, which servers and desktops can have:
# their steps read it in half of the time.
_SERVER = Deployment(
    name="server",
    steps=Proposal(precision="int8", cache="fp16"),
    texts=_PER_TOKEN,
    on_devices={"cuda": (_HALF, _HALF)},
)

# A desktop has one user: the bytes that a token has to read bound its speed. A head in int6 loses what one in int8
# does, and edgeformer-kernels read three quarters of its bytes.
_DESKTOP = Deployment(
    name="desktop",
    steps=Proposal(precision="int4", head="int6", cache="fp16"),
    texts=_PER_TOKEN,
    on_devices={"cuda": (_HALF, _HALF), "webgpu": _IN_BLOCKS},
)

# onnxruntime's WebAssembly has no kernels for products in blocks (it dequantizes the whole matrix every time), and none
# for gathers from them. It has products of int8 with int8. WebGPU has kernels for blocks, and none for int8 with int8:
# of tiny-llama, onnxruntime-web left 93 of 345 nodes of the latter to WebAssembly, and of int4 the lengths alone.
_WEB = Deployment(
    name="web",
    steps=_PER_TOKEN,
    texts=_PER_TOKEN,
    on_devices={"webgpu": _IN_BLOCKS},
    block_kernels=False,
    primitive_gathers=True,
    shared_data=False,
    largest_data=LARGEST_ARRAY,
    windowed=False,
    certificate=False,
    clients=("transformers.js",),
    copied_files=READ_TODAY,
)

# onnxruntime does not optimize an .ort file when it loads it, and on some processors per-token products need that.
# Tensors of an .ort file cannot share bytes, so gathers read the tensors of the products.
_MOBILE = Deployment(
    name="mobile",
    steps=Proposal(precision="int4", head="int8"),
    texts=Proposal(precision="int8"),
    primitive_gathers=True,
    ort_format=True,
    windowed=False,
    certificate=False,
    clients=("onnxruntime-genai",),
    copied_files=READ_TODAY,
)

DEPLOYMENTS: dict[str | None, Deployment] = {each.name: each for each in (ANYWHERE, _SERVER, _DESKTOP, _WEB, _MOBILE)}
"""Deployments by name; None stands for no particular one."""

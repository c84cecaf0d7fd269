"""Options of onnxruntime's WebGPU provider that users choose."""

from dataclasses import dataclass
from typing import Literal, get_args

from edgeformer.errors import RequestError
from edgeformer.runtime.request_values import count, flag, shown
from edgeformer.runtime.sessions.providers.provider_options import ProviderOptions

PowerPreference = Literal["high-performance", "low-power"]
ValidationMode = Literal["disabled", "wgpuOnly", "basic", "full"]

LEAST_BINDING = 2**27
"""Bytes of a buffer that kernels see on every device of WebGPU; the plugin takes no smaller limit.

Source: maxStorageBufferBindingSize of https://www.w3.org/TR/webgpu/#limits
"""


@dataclass(frozen=True, kw_only=True)
class WebGpuOptions(ProviderOptions):
    """Options of the WebGPU provider; they have no effect on others.

    A process has one WebGPU device, and the first session opens it: options of later ones change nothing. The plugin
    (0.4.0) chooses the adapter itself, by its power preference alone: it takes no number of a device.

    power_preference: of a machine with two GPUs, the fast one or the one that saves power; None for the driver's own
        choice.
    validation_mode: how much the provider checks of what it asks of the driver, from `disabled` to `full`, which is
        slow and finds mistakes of drivers and kernels; None for the provider's own choice, `basic`.
    max_storage_buffer_binding_size: bytes of a buffer that a kernel sees at most, to try the limit of a smaller device,
        from 128 MiB (2**27) on; None for that of this device. Kernels see larger buffers in pieces.
    allow_software: let a driver without a GPU compute, such as SwiftShader, for tests: right and slow. Where no session
        has run, it says so to the plugin by its variable ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER; `auto` never takes one.

    Raises RequestError for other values.
    """

    power_preference: PowerPreference | None = None
    validation_mode: ValidationMode | None = None
    max_storage_buffer_binding_size: int | None = None
    allow_software: bool = False

    def __post_init__(self) -> None:
        flag("allow_software", self.allow_software)
        for name, kind in (("power_preference", PowerPreference), ("validation_mode", ValidationMode)):
            value, known = getattr(self, name), get_args(kind)
            if value is not None and (not isinstance(value, str) or value not in known):
                raise RequestError(
                    f"{name} is {shown(value)}; it must be {', '.join(known[:-1])} or {known[-1]}, or None."
                )
        if self.max_storage_buffer_binding_size is not None:
            size = self.max_storage_buffer_binding_size
            count("max_storage_buffer_binding_size", size, least=LEAST_BINDING, most=2**63 - 1)

    def for_onnxruntime(self) -> dict[str, str]:
        """Return the options as onnxruntime takes them with a device. The plugin ignores unknown names."""
        options = {
            "powerPreference": self.power_preference,
            "validationMode": self.validation_mode,
            "maxStorageBufferBindingSize": self.max_storage_buffer_binding_size,
        }
        return {name: str(value) for name, value in options.items() if value is not None}

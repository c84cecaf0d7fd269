"""Export transformers' own modules, for architectures that have no family file.

The module stays as it is; its norms, rotations and attention are routed to our ops from outside. Nothing is told by a
model's name: what a module computes is found by running it (`plan`), and that the rerouted one computes the same is
shown on the real weights (`proof`) before anything is exported. What cannot be routed is refused with the reason.

    hf_module   config.json → transformers' module without weights      masks, norms, rotary   what parts of it compute
    planning    what of it can be rerouted, or why it cannot            attention              our ops behind its calls
    rerouted    the module that does what a plan says                   weights                the checkpoint by name
    proof       both modules in float64                                 model spec              all that an export needs
"""

from edgeformer.errors import require

require("transformers", "transformers")

from edgeformer.export.adapters.transformers_backend.adapter import (  # noqa: E402 - after the message above
    open_checkpoint,
    open_with_transformers,
    reopen,
)

__all__ = ["open_checkpoint", "open_with_transformers", "reopen"]

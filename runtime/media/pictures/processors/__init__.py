"""The processors of pictures: a file for each kind of `edgeformer.manifest.pictures`, by its name."""

from edgeformer.documents.kinds import kinds_of
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.runtime.media.pictures.processors.processor import Processor


def new_processor(config: PictureProcessor) -> Processor:
    """Return the processor of a config, which makes values of pictures."""
    kind: type[Processor] = kinds_of(__name__, "PROCESSOR")[config.kind]
    return kind(config)

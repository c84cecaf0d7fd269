"""Read `model.safetensors.index.json`: which file of a checkpoint holds which tensor."""

from pathlib import Path

from edgeformer.documents.json_document import is_inside, read_object
from edgeformer.errors import WeightsError, shown


def read_weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor, by the tensor's name.

    Raises WeightsError for an index of another form, and for a file outside of the folder.
    """
    listed = read_object(index, WeightsError).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(file, str) for file in listed.values()):
        raise WeightsError(f"{index} must have a weight_map: an object with the file of each tensor.")
    outside = next((file for file in listed.values() if not is_inside(file)), None)
    if outside is not None:
        raise WeightsError(f"{index} names the file {shown(outside)}, which is outside its folder. Do not trust it.")
    return listed

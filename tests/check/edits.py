"""Edits that put a fault into a bundle."""

import json

import onnx


class Edit:
    """A bundle to put a fault into, with one method per kind of file."""

    def __init__(self, folder):
        self.folder = folder

    def json(self, name, place, value=None):
        """Set the value at a place (dots between keys) of a JSON file; None removes it."""
        path = self.folder / name
        content = json.loads(path.read_text())
        *keys, last = place.split("/")
        holder = content
        for key in keys:
            holder = holder.setdefault(key, {})
        if value is None:
            holder.pop(last)
        else:
            holder[last] = value
        path.write_text(json.dumps(content))

    def graph(self, change, name="onnx/model.onnx"):
        """Change the proto of a graph; its weights stay where they are."""
        path = self.folder / name
        model = onnx.load(path, load_external_data=False)
        change(model)
        path.write_bytes(model.SerializeToString())

    def rename(self, old, new, name="onnx/model.onnx"):
        """Rename a tensor in all nodes that use it."""

        def change(model):
            for value in [*model.graph.input, *model.graph.output]:
                value.name = new if value.name == old else value.name
            for node in model.graph.node:
                for names in (node.input, node.output):
                    names[:] = [new if each == old else each for each in names]

        self.graph(change, name)

    def dims(self, place, value):
        """Set a dimension of every cache, to a number or a symbol."""

        def change(model):
            for tensor in [*model.graph.input, *model.graph.output]:
                if tensor.name.startswith(("past", "present")):
                    dim = tensor.type.tensor_type.shape.dim[place]
                    dim.Clear()
                    setattr(dim, "dim_value" if isinstance(value, int) else "dim_param", value)

        self.graph(change)

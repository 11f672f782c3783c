"""Recordings as the recorder writes them, made without PyTorch, and wrong values in their entries."""

import hashlib
import json

import numpy as np

from lowprec.parity.recording import FILES, load_recording


class Folder:
    """A recording that stores every row."""

    def __init__(self, path):
        path.mkdir()
        self.path, self.data, self.rows = path, b"", []

    def store(self, array):
        self.data += (raw := np.ascontiguousarray(array).tobytes())
        return [len(self.data) - len(raw), len(raw)]

    def tensor(self, array, dtype):
        rows = array.reshape(-1, array.shape[-1] if array.ndim else 1)
        hashes = [int.from_bytes(hashlib.sha256(row.tobytes()).digest()[:7]) for row in rows]
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        return {"dtype": dtype, "shape": list(array.shape), "hash": digest, "row_hashes": self.store(np.int64(hashes)),
                "rows": list(range(len(hashes))), "itemsize": array.itemsize,
                "values": self.store(array)}  # fmt: skip

    def sample(self, array, dtype="float32"):
        return {"dtype": dtype, "itemsize": array.itemsize, "shape": list(array.shape), "at": self.store(array)}

    def add(self, name, inputs, output, numbers=(), dtypes=None, product=None, factors=(), out="float32", **more):
        dtypes = dtypes or ["float32"] * len(inputs)
        module, _, rest = name.partition("/")
        row = {"name": name, "module": module, "kind": rest.partition("#")[0], "numbers": list(numbers),
               "inputs": [self.tensor(*pair) for pair in zip(inputs, dtypes, strict=True)],
               "outputs": [self.tensor(output, out)]}  # fmt: skip
        if product:
            a, b = inputs
            row["product"] = {"rows": list(range(len(a))), "columns": list(range(len(b))), "factors": list(factors),
                              "a": self.sample(a, dtypes[0]), "b": self.sample(b, dtypes[1]),
                              "d": self.sample(output, out)}  # fmt: skip
            row["product"] |= {name: self.sample(array) for name, array in more.items()}
        self.rows.append(row)
        return self

    def renamed(self, module, new):
        for row in self.rows:
            row["module"] = new if row["module"] == module else row["module"]
        return self

    def close(self, **more):
        about = {"recorder": 1, "finished": True, "operations": len(self.rows), "parameters": {}, **more}
        (self.path / FILES[2]).write_bytes(self.data)
        (self.path / FILES[1]).write_text("\n".join(map(json.dumps, self.rows)))
        (self.path / FILES[0]).write_text(json.dumps(about))
        return load_recording(self.path)


ODD = (None, -1, 10**30, "x", [], {}, 1.5, True, [-1, 4], [0, 10**15], ["a"], [[1]], "float7", 0)
REMOVED = object()


def places(value, place=()):
    """Yield the place of every value in JSON content."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*place, key)
        yield from places(value[key], (*place, key))


def replace_value(content, choose):
    """Replace some value in JSON content by another one, or remove it; `choose` returns one of some options."""
    *path, last = choose(list(places(content)))
    for key in path:
        content = content[key]
    content[last] = choose((*ODD, *ODD, *ODD, REMOVED, REMOVED, REMOVED))
    if content[last] is REMOVED:
        del content[last]

"""Record the operations of a PyTorch model; this file works alone and can be copied to the machine to record on.

    from recorder import record

    with record("trainer", model):
        model(tokens)

The folder then holds `manifest.json`, `operations.jsonl` and `tensors.bin`; `lowprec diverge trainer rollout` finds the
first operation at which two folders differ. Every operation that PyTorch dispatches is recorded, on any device: its
name, numbers, a hash of each row of its tensors, and samples of their values. Run the model eagerly: in compiled
graphs and CUDA graphs, operations are fused before they are dispatched. Only PyTorch is required.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

VERSION = 1
#: Operations whose second matrix is stored by columns: product -> index of the first factor.
PRODUCTS = {"aten.mm": 0, "aten.addmm": 1, "aten.bmm": 0, "aten.baddbmm": 1, "aten._scaled_mm": 0, "aten.linear": 0}
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextmanager
def record(folder: str, model: Any, *, rows: int = 8, columns: int = 16, keep: str = "") -> Iterator[None]:
    """Context manager that records the operations of a model in a new folder.

    Parameters
    ----------
    folder : str
        Folder to create; it must not exist.
    model : torch.nn.Module
        Model, whose modules give the operations their names.
    rows, columns : int
        Number of rows of each tensor, and of columns of a product's second matrix, whose values are stored.
    keep : str
        Pattern, such as ``"layers.3.*"``, of operations whose tensors are stored whole.

    Raises
    ------
    FileExistsError
        If the folder exists.
    """
    os.makedirs(folder)
    recorder = _Recorder(folder, model, rows, columns, keep)
    handles = recorder.add_hooks()
    try:
        with recorder:
            yield
    finally:
        for handle in handles:
            handle.remove()
        recorder.close(finished=sys.exc_info()[0] is None)


class _Recorder(TorchDispatchMode):
    """Writer of a line for every operation and every module."""

    def __init__(self, folder: str, model: Any, rows: int, columns: int, keep: str) -> None:
        super().__init__()
        self.folder, self.rows, self.columns, self.keep = folder, rows, columns, keep
        self.names = {module: name for name, module in model.named_modules()}
        self.stack: list[str] = []
        self.calls: Counter[str] = Counter()
        self.count = 0
        self.is_own = False  # whether the recorder itself computes
        self.lines = open(os.path.join(folder, "operations.jsonl"), "w")  # noqa: SIM115  # closed by `close`
        self.bytes = open(os.path.join(folder, "tensors.bin"), "wb")  # noqa: SIM115
        self.stored: dict[str, list[int]] = {}
        self.constants: dict[int, tuple[int, dict[str, Any]]] = {}
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.parameters = {name: self.describe(t) for name, t in state.items()}
        self.constants = {id(t): (t._version, self.parameters[name]) for name, t in state.items()}
        self.model = type(model).__name__

    def add_hooks(self) -> list[Any]:
        """Follow which module runs, and record its inputs and outputs."""
        waiting: list[list[Any]] = []

        def enter(module: Any, args: Any, kwargs: Any) -> None:
            with self.own():
                waiting.append([self.describe(t) for t in _tensors((args, kwargs))])
            self.stack.append(self.names[module])

        def leave(module: Any, args: Any, kwargs: Any, out: Any) -> None:
            name = self.stack.pop()
            with self.own():
                outputs = [self.describe(t) for t in _tensors(out)]
            self.write(name, "module", waiting.pop(), outputs, [type(module).__name__])

        found = []
        for module in self.names:
            found.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            found.append(module.register_forward_hook(leave, with_kwargs=True))
        return found

    @contextmanager
    def own(self) -> Iterator[None]:
        """Context manager within which operations are the recorder's own, computed by a hook, and are not recorded."""
        self.is_own = True
        try:
            yield
        finally:
            self.is_own = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operation, unless it only views or allocates memory, or has no floating-point result."""
        kwargs = kwargs or {}
        if self.is_own:
            return func(*args, **kwargs)
        schema = func._schema
        is_written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        if not any(is_written) and any(r.alias_info is not None for r in schema.returns):
            return func(*args, **kwargs)  # a view
        inputs = [self.describe(t) for t in _tensors((args, kwargs))]
        product = self.factors(func, args)
        out = func(*args, **kwargs)
        made = _tensors(out)
        for place, written in enumerate(is_written):
            if written:
                value = args[place] if place < len(args) else kwargs.get(schema.arguments[place].name)
                made += [t for t in _tensors(value) if all(t is not other for other in made)]
        if inputs and any(t.dtype.is_floating_point for t in made):
            numbers = [repr(v) for v in _leaves((args, sorted(kwargs.items()))) if not isinstance(v, torch.Tensor)]
            outputs = [self.describe(t) for t in made]
            self.write(self.stack[-1] if self.stack else "", str(func), inputs, outputs, numbers, product, made[0])
        return out

    def factors(self, func: Any, args: Any) -> dict[str, Any] | None:
        """Store rows of a product's first matrix and columns of its second, over all of K; return where they are."""
        first = PRODUCTS.get(str(func).rsplit(".", 1)[0])
        if first is None or len(args) < first + 2:
            return None
        a, b = args[first].detach(), args[first + 1].detach()
        b = b if str(func).startswith("aten.linear") else b.transpose(-1, -2)
        if a.dim() == 3 and b.dim() == 3:
            a, b = a[0], b[0]
        a = a.reshape(-1, a.shape[-1])
        m, n = _spread(len(a), self.rows), _spread(len(b), self.columns)
        addend = args[0].detach() if first else None
        found = {"rows": m, "columns": n, "a": self.store(a[m]), "b": self.store(b[n])}
        if addend is not None:
            found["c"] = self.store(torch.broadcast_to(addend, (*addend.shape[:-2], len(a), len(b)))
                                    .reshape(-1, len(a), len(b))[0][m][:, n])  # fmt: skip
        return found

    def describe(self, tensor: Any) -> dict[str, Any]:
        """Return dtype, shape and hash of a tensor, and where its rows' hashes and samples of its values are stored."""
        version, known = self.constants.get(id(tensor), (None, None))
        if known is not None and version == tensor._version:
            return known
        t = tensor.detach()
        if t.layout != torch.strided or t.numel() == 0 or t.is_complex():
            return {"dtype": str(t.dtype)[6:], "shape": list(t.shape), "hash": f"{t.layout}"}
        matrix = t.contiguous().reshape(-1, t.shape[-1] if t.dim() else 1)
        words = matrix.view(torch.uint8) if t.dtype == torch.bool else matrix.view(WORDS[t.element_size()])
        hashes = (words.to(torch.int64) * _multipliers(words.shape[1], str(words.device))).sum(-1)
        about = f"{t.dtype} {tuple(t.shape)}".encode()
        row = {"dtype": str(t.dtype)[6:], "shape": list(t.shape)}
        row["hash"] = hashlib.sha256(about + _raw(hashes)).hexdigest()[:24]
        places = _spread(len(matrix), self.rows)
        return {**row, "row_hashes": self.store(hashes), "rows": places, "values": self.store(matrix[places])}

    def store(self, t: Any) -> list[int]:
        """Write a tensor's bytes, unless equal ones have been written; return their offset and length."""
        data = _raw(t)
        key = hashlib.sha256(data).hexdigest()
        if key not in self.stored:
            self.stored[key] = [self.bytes.tell(), len(data)]
            self.bytes.write(data)
        return self.stored[key]

    def write(
        self, module: str, kind: str, inputs: Any, outputs: Any, numbers: Any, product: Any = None, made: Any = None
    ) -> None:
        """Write the line of an operation; its name counts the calls of one kind in one module."""
        key = f"{module or '<model>'}/{kind}"
        name = f"{key}#{self.calls[key]}"
        self.calls[key] += 1
        self.count += 1
        row = {"name": name, "module": module, "kind": kind, "numbers": numbers, "inputs": inputs, "outputs": outputs}
        if product is not None:
            d = made.detach()
            d = d[0] if d.dim() == 3 and kind.startswith(("aten.bmm", "aten.baddbmm")) else d.reshape(-1, d.shape[-1])
            row["product"] = {**product, "d": self.store(d[product["rows"]][:, product["columns"]])}
        if self.keep and made is not None and fnmatchcase(name, self.keep):
            row["whole"] = self.store(made.detach())
        self.lines.write(json.dumps(row) + "\n")

    def close(self, *, finished: bool) -> None:
        """Write the manifest, without which a folder is incomplete."""
        self.lines.close()
        self.bytes.close()
        here = f"{platform.machine()}, {torch.get_num_threads()} threads"
        about = {
            "recorder": VERSION, "finished": finished, "operations": self.count, "model": self.model,
            "parameters": self.parameters, "torch": torch.__version__, "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else here,
            "float32 products": torch.get_float32_matmul_precision(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }  # fmt: skip
        path = os.path.join(self.folder, "manifest.json")
        with open(f"{path}.part", "w") as file:
            json.dump(about, file, indent=1)
        os.replace(f"{path}.part", path)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _tensors(value: Any) -> list[Any]:
    return [item for item in _leaves(value) if isinstance(item, torch.Tensor)]


def _spread(size: int, count: int) -> list[int]:
    """Return up to `count` indices from 0 to size - 1, including the first and the last."""
    count = min(size, count)
    return sorted({round(i * (size - 1) / max(count - 1, 1)) for i in range(count)})


def _raw(t: Any) -> bytes:
    t = t.contiguous().cpu().reshape(-1)
    return bytes(t.view(torch.uint8).tolist()) if t.numel() < 64 else bytes(memoryview(t.view(torch.uint8).numpy()))


_MULTIPLIERS: dict[tuple[int, str], Any] = {}


def _multipliers(count: int, device: str) -> Any:
    """Return odd 64-bit multipliers: a row's hash is the sum of its words, each times its multiplier, modulo 2^64."""
    if (count, device) not in _MULTIPLIERS:
        x = torch.arange(1, count + 1, dtype=torch.int64) * -7046029254386353131  # splitmix64, which wraps
        for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
            x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
        _MULTIPLIERS[count, device] = ((x ^ ((x >> 31) & ((1 << 33) - 1))) | 1).to(device)
    return _MULTIPLIERS[count, device]

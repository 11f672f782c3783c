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
import math
import os
import platform
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

VERSION = 1
#: Matrix products, and the index of the first factor among their arguments; columns of the second factor are stored.
PRODUCTS = {"aten.mm": 0, "aten.addmm": 1, "aten.bmm": 0, "aten.baddbmm": 1, "aten._scaled_mm": 0, "aten.linear": 0}
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextmanager
def record(folder: str, model: Any, *, rows: int = 8, columns: int = 16) -> Iterator[None]:
    """Context manager: record the operations of a model into a new folder.

    Parameters
    ----------
    folder : str
        Folder to create; it must not exist.
    model : torch.nn.Module
        Model to record; operations are named after its modules.
    rows, columns : int
        Numbers of stored rows of each tensor, and of stored columns of a product's second matrix.

    Raises
    ------
    FileExistsError
        If the folder exists.
    """
    os.makedirs(folder)
    recorder, finished = _Recorder(folder, model, rows, columns), False
    handles = recorder.add_hooks()
    try:
        with recorder:
            yield
        finished = True
    finally:
        for handle in handles:
            handle.remove()
        recorder.close(finished=finished)


class _Recorder(TorchDispatchMode):
    """Writer of a line for every operation and every module."""

    def __init__(self, folder: str, model: Any, rows: int, columns: int) -> None:
        super().__init__()
        self.folder, self.rows, self.columns = folder, rows, columns
        self.names = {module: name for name, module in model.named_modules()}
        self.stack: list[tuple[str, list[Any]]] = []  # modules that run, with their inputs
        self.calls: Counter[str] = Counter()
        self.count = 0
        self.is_own = False  # whether the recorder itself computes
        self.lines = open(os.path.join(folder, "operations.jsonl"), "w")  # noqa: SIM115  # closed by `close`
        self.bytes = open(os.path.join(folder, "tensors.bin"), "wb")  # noqa: SIM115
        self.stored: dict[str, list[int]] = {}
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.parameters = {name: self.describe(t) for name, t in state.items()}
        self.model = type(model).__name__

    def add_hooks(self) -> list[Any]:
        """Follow which module runs, and record its inputs and outputs."""

        def enter(module: Any, args: Any, kwargs: Any) -> None:
            with self.own():
                self.stack.append((self.names[module], [self.describe(t) for t in _tensors((args, kwargs))]))

        def leave(module: Any, args: Any, kwargs: Any, out: Any) -> None:
            name = self.names[module]
            if all(name != entered for entered, _ in self.stack):
                return  # another hook failed before `enter`
            while self.stack[-1][0] != name:  # these ended with an exception
                self.stack.pop()
            _, inputs = self.stack.pop()
            if out is not None:  # None: this one did, too
                with self.own():
                    outputs = [self.describe(t) for t in _tensors(out)]
                self.write(name, "module", inputs, outputs, [type(module).__name__])

        found = []
        for module in self.names:
            found.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            found.append(module.register_forward_hook(leave, with_kwargs=True, always_call=True))
        return found

    @contextmanager
    def own(self) -> Iterator[None]:
        """Context manager for operations that a hook of the recorder computes, which are not recorded."""
        self.is_own = True
        try:
            yield
        finally:
            self.is_own = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operation with a real or complex result, unless it only views or allocates memory."""
        kwargs = kwargs or {}
        if self.is_own:
            return func(*args, **kwargs)
        schema = func._schema
        is_written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        if not any(is_written) and any(r.alias_info is not None for r in schema.returns):
            return func(*args, **kwargs)  # a view
        inputs = [self.describe(t) for t in _tensors((args, kwargs))]
        product = self.factors(func, args, kwargs)
        out = func(*args, **kwargs)
        made = _tensors(out)
        for place, written in enumerate(is_written):
            if written:
                value = args[place] if place < len(args) else kwargs.get(schema.arguments[place].name)
                made += [t for t in _tensors(value) if all(t is not other for other in made)]
        if inputs and any(t.dtype.is_floating_point or t.is_complex() for t in made):
            others = [v for v in _leaves((args, sorted(kwargs.items()))) if not isinstance(v, torch.Tensor)]
            numbers = [re.sub(r" at 0x[0-9a-f]+", "", repr(v)) for v in others]  # without addresses in memory
            outputs = [self.describe(t) for t in made]
            self.write(self.stack[-1][0] if self.stack else "", str(func), inputs, outputs, numbers, product, made[0])
        return out

    def factors(self, func: Any, args: Any, kwargs: Any) -> dict[str, Any] | None:
        """Store rows of the first matrix of a product and columns of the second, all of K; return where they are."""
        kind = str(func).rsplit(".", 1)[0]
        first = PRODUCTS.get(kind)
        given = {**dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)), **kwargs}
        if first is None or not all(_has_values(t) and not t.is_complex() for t in _tensors(given)):
            return None
        if args[first + 1].dim() < 2:
            return None
        types = [str(t.dtype)[6:] for t in args[first : first + 2]]
        a, b = map(_words, args[first : first + 2])
        b = b if kind == "aten.linear" else b.transpose(-1, -2)
        if a.dim() == 3 and b.dim() == 3:
            a, b = a[0], b[0]
        a = a.reshape(-1, a.shape[-1])
        m, n = _spread(len(a), self.rows), _spread(len(b), self.columns)
        found = {"rows": m, "columns": n, "a": self.sample(a[m], types[0]), "b": self.sample(b[n], types[1])}
        addend = args[0] if first else given.get("bias")
        if addend is not None:
            c = _words(addend)
            c = torch.broadcast_to(c, (*c.shape[:-2], len(a), len(b))).reshape(-1, len(a), len(b))[0]
            found["c"] = self.sample(c[m][:, n], str(addend.dtype)[6:])
        for side in "ab":
            scale = given.get(f"scale_{side}")
            if scale is not None:
                found[f"{side}_scale"] = self.sample(_words(scale), str(scale.dtype)[6:])
        factors = [f"{name} {given[name]}" for name in ("alpha", "beta") if given.get(name, 1) != 1]
        found["factors"] = factors + ["scale_result"] * (given.get("scale_result") is not None)
        return found

    def sample(self, words: Any, dtype: str) -> dict[str, Any]:
        """Store words; return their dtype, size in bytes, shape, and where they are."""
        return {"dtype": dtype, "itemsize": words.element_size(), "shape": list(words.shape), "at": self.store(words)}

    def describe(self, tensor: Any) -> dict[str, Any]:
        """Return dtype, shape and hash of a tensor, and where hashes of its rows and samples of its values are."""
        shape = [] if tensor.is_nested else list(tensor.shape)
        row = {"dtype": str(tensor.dtype)[6:], "shape": shape}
        about = f"{tensor.dtype} {tuple(shape)} {tensor.layout}"
        if not _has_values(tensor):
            return {**row, "hash": f"{about} {'meta' if tensor.is_meta else ''}"}
        words = _words(tensor)
        width = words.numel() // max(math.prod(shape[:-1]), 1)
        matrix = words.contiguous().reshape(-1, width)
        hashes = (matrix.to(torch.int64) * _multipliers(width, str(matrix.device))).sum(-1)
        row["hash"] = hashlib.sha256(about.encode() + _raw(hashes)).hexdigest()[:24]
        places = _spread(len(matrix), self.rows)
        values = {"itemsize": matrix.element_size(), "values": self.store(matrix[places])}
        return {**row, "row_hashes": self.store(hashes), "rows": places, **values}

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
            d = _words(made)
            d = d[0] if d.dim() == 3 and kind.startswith(("aten.bmm", "aten.baddbmm")) else d.reshape(-1, d.shape[-1])
            row["product"] = {
                **product,
                "d": self.sample(d[product["rows"]][:, product["columns"]], str(made.dtype)[6:]),
            }
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


def _has_values(t: Any) -> bool:
    """Return whether a tensor has values, in memory that can be read as words."""
    return t.layout == torch.strided and not (t.is_nested or t.is_meta or t.is_quantized) and t.numel() > 0


def _words(t: Any) -> Any:
    """Return the bits of a tensor as integers of its size; of complex numbers, along a last axis of 2."""
    t = t.detach().resolve_conj().resolve_neg()
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.view(WORDS[t.element_size()])


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

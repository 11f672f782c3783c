"""Runner of an adapter's operations on arrays from files, in the package's environment."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Answer = dict[str, Any]
"""Arrays by name: `codes`, one per element, or `values`; for blocks `scale`, a float32 that multiplies codes, or
`scale_codes`, its code; and `tensor_scale`, a further factor.
"""


@dataclass(frozen=True)
class Operation:
    """One operation of a package.

    Parameters
    ----------
    name : str
        Name, unique in the package.
    function : callable
        Function that takes one array, float32 or codes, and returns an `Answer`.
    arguments : mapping
        Keyword arguments of the function.
    inputs : str
        Name of the input array: "casts/FORMAT", "codes/FORMAT", "blocks/WIDTH" or "tiles/128"; "tensors" or
        "tensors/bfloat16", passed in one call per tensor; "nibbles/FORMAT", values to pack; "hadamard/16", blocks to
        transform; "products/FORMAT", codes of 64 rows of A and 8 of B for every product.
    entry : str
        Format, quantizer or accumulator of lowprec to compare with.
    options : mapping
        Rounding and policy of a cast, fields of the quantizer that differ from the entry's, arguments of
        `lp.hadamard`, or `addend` of a product, as a string.
    domain : {"all", "numbers", "finite", "nonnegative", "positive"}
        Inputs for which the operation is defined.
    step : int
        Every `step`-th input is computed; above 1 for slow operations.
    """

    name: str
    function: Callable[..., Answer]
    inputs: str
    entry: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    domain: str = "all"
    step: int = 1

    @property
    def quantizes(self) -> bool:
        """Whether the answer has scales of blocks."""
        return self.inputs.startswith(("blocks", "tiles", "tensors"))

    def run(self, x: Any) -> Answer:
        """Return the answer for an array of inputs."""
        if not self.inputs.startswith("tensors"):
            return self.function(x, **self.arguments)
        answers = [self.function(tensor, **self.arguments) for tensor in x]
        return {name: np.stack([np.asarray(answer[name]) for answer in answers]) for name in answers[0]}


def nibbles(packed: Any) -> Any:
    """Return two codes per byte along the last axis, the low one first."""
    packed = np.ascontiguousarray(packed).view(np.uint8)
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def checkout(variable: str, source: str, *patterns: str) -> str:
    """Return a hash of files in the checkout that an environment variable names."""
    if variable not in os.environ:
        raise FileNotFoundError(f"set {variable} to a checkout of {source}")
    files = sorted(file for pattern in patterns for file in Path(os.environ[variable]).glob(pattern))
    return f"sha256 {hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()[:8]}"


def casts(
    cast: Callable[..., Answer], names: Mapping[str, str], common: Mapping[str, Any], special: Mapping[str, Any]
) -> list[Operation]:
    """Return cast operations; `names` maps lowprec's names of formats to the package's.

    An operation has the fields that `special` has for lowprec's name or, without such an entry, the fields `common`.
    """
    return [
        Operation(f"cast {ours}", cast, f"casts/{ours}", ours, {"name": name}, **special.get(ours, common))
        for ours, name in names.items()
    ]


def decodes(decode: Callable[..., Answer], names: Mapping[str, str]) -> list[Operation]:
    """Return operations that decode all codes; `names` maps lowprec's names of formats to the package's."""
    return [Operation(f"decode {ours}", decode, f"codes/{ours}", ours, {"name": name}) for ours, name in names.items()]


def main(adapter: str, inputs: str, out: str) -> None:
    """Run all operations of an adapter; write answers, versions and errors to an .npz file."""
    module = importlib.import_module(f".{adapter}", __package__)
    answers: dict[str, Any] = {}
    notes: dict[str, Any] = {"errors": {}}
    for number, operation in enumerate(module.OPERATIONS, 1):
        sys.stdout.write(f"{number}/{len(module.OPERATIONS)} {operation.name}\n")
        sys.stdout.flush()
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                x = np.load(Path(inputs) / f"{operation.inputs.replace('/', '_')}.npy", allow_pickle=False)
                answer = operation.run(x[:: operation.step])
            answers |= {f"{operation.name}|{part}": np.ascontiguousarray(array) for part, array in answer.items()}
        except Exception as error:  # the board shows it in place of an answer
            notes["errors"][operation.name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    host = {"python": platform.python_version(), "cpu": cpu(), "date": time.strftime("%Y-%m-%d")}
    notes |= {"versions": versions(adapter), "host": host}
    part = Path(f"{out}.part.npz")
    np.savez(part, notes=np.array(json.dumps(notes)), **answers)
    os.replace(part, out)


def versions(adapter: str) -> dict[str, str]:
    """Return the versions of an adapter's packages.

    If the adapter has a function `version`, the first package is a checkout, whose version that function returns.
    """
    module = importlib.import_module(f".{adapter}", __package__)
    own = {module.VERSIONS[0]: module.version()} if hasattr(module, "version") else {}
    return {name: version(name) for name in module.VERSIONS if name not in own} | own


def cpu() -> str:
    """Return the model of the CPU, on which the NaN of some packages depends."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()

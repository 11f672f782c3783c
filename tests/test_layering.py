"""Who may import whom: the layers of the package, read from the sources."""

import ast
from pathlib import Path

import pytest

import lowprec

PACKAGE = Path(lowprec.__file__).parent

# Lower layers first; a module may import its own layer and those below. Files below a folder belong to its entry.
LAYERS = [
    {"_jit", "registry", "scratch", "row_pieces"},
    {"kernels"},
    {"format", "formats", "policies", "rounding"},
    {"cast_constants"},
    {"cast_kernels"},
    {"cast_arrays"},
    {"granularity", "cast", "packing", "ulp"},
    {"quantizers", "hadamard"},
    {"scale_constants"},
    {"blocks"},
    {"quantized", "quantized_file", "scaling", "delayed", "accumulate", "libraries"},
    {"fused_kernels", "reference_dots", "differences"},
    {"engine"},
    {"panel_kernels"},
    {"wide_kernels", "run_kernels", "f32_products"},
    {"engines"},
    {"instructions"},
    {"operands"},
    {"packed"},
    {"gemm", "logfmt"},
    {"grouped"},
    {"codecs"},
    {"reductions"},
    {"recipe"},
    {"moe"},
    {"atlas"},
    {"study", "verify"},
    {"cli", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Modules beside the layers, and all that each may import of the package.
BESIDE = {
    "oracle": {"format", "formats"},
    "metrics": set(),
    "value_spread": {"metrics"},
    "costs": {"registry", "format", "formats", "codecs"},
    "reference": set(),
    "testing": set(LEVEL),
    "interop": set(LEVEL),
}
ONLY_JIT_MAY_IMPORT = {"numba", "llvmlite"}

FILES = sorted(PACKAGE.rglob("*.py"))


def unit_of(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "cli" if part.startswith("cli") else part


def imports_of(path: Path) -> set[str]:
    """Return absolute dotted names of everything a file imports, at any depth of nesting."""
    found: set[str] = set()
    package = ["lowprec", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            found.add(".".join(base))
            found.update(".".join([*base, alias.name]) for alias in node.names)
    return found


def test_kernels_are_no_generators() -> None:
    """Numba knows a generator no more once it comes from the disk cache: what is compiled against it then fails."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and "kernel" in map(ast.unparse, node.decorator_list):
                found = [part for part in ast.walk(node) if isinstance(part, ast.Yield | ast.YieldFrom)]
                assert not found, f"{path.relative_to(PACKAGE)}: {node.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    unit = unit_of(path)
    names = imports_of(path)
    outside = {name.split(".")[0] for name in names} & ONLY_JIT_MAY_IMPORT
    assert not outside or unit == "_jit", f"{outside} may be imported by _jit.py alone"
    if unit == "__init__":
        return
    used = {parts[1] for name in names if (parts := name.split("."))[0] == "lowprec" and len(parts) > 1} - {unit}
    used = {"cli" if name.startswith("cli") else name for name in used if (PACKAGE / name).exists() or
            (PACKAGE / f"{name}.py").exists()} - {unit}  # fmt: skip
    if unit in BESIDE:
        wrong = used - BESIDE[unit]
    elif unit == "kernels":
        wrong = used - {"_jit"}
    else:
        wrong = {name for name in used if name not in BESIDE and LEVEL.get(name, 99) > LEVEL[unit]}
        wrong |= {name for name in used if name in BESIDE and LEVEL[unit] < LEVEL["moe"]}
    assert not wrong, f"{unit} must not import {sorted(wrong)}"


def test_every_module_has_a_place() -> None:
    assert {unit_of(path) for path in FILES} <= {*LEVEL, *BESIDE, "__init__"}

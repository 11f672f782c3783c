"""TransformerEngine's references in PyTorch, from the checkout in the folder TRANSFORMER_ENGINE, without its extension.

Its "scale" multiplies values; the stored inverse multiplies codes. A byte holds the first code in its low nibble.
"""

from typing import Any

from .harness import Answer, Operation, checkout, nibbles

VERSIONS = ("transformer_engine", "torch")
ENVIRONMENT = "torch"
NEEDS = ("torch", "numpy")


def version() -> str:
    """Return the version of the checkout, and a hash of its references."""
    import os
    from pathlib import Path

    references = ("transformer_engine/pytorch/custom_recipes/*.py", "tests/pytorch/references/*.py")
    found = checkout("TRANSFORMER_ENGINE", "github.com/NVIDIA/TransformerEngine", *references)
    return f"{Path(os.environ['TRANSFORMER_ENGINE'], 'build_tools/VERSION.txt').read_text().strip()}, {found}"


def reference(name: str) -> Any:
    """Import a reference without the package, which is replaced by empty modules."""
    import importlib
    import os
    import sys
    import types
    from pathlib import Path

    class Quantizer:
        """Attributes of TransformerEngine's class that its references use."""

        def __init__(self, *, rowwise: bool = True, columnwise: bool = True) -> None:
            self.rowwise_usage, self.columnwise_usage = rowwise, columnwise

    root, package = Path(os.environ["TRANSFORMER_ENGINE"]), "transformer_engine.pytorch"
    folders = {
        "transformer_engine": [], package: [], f"{package}.tensor": [], f"{package}.quantized_tensor": [],
        f"{package}.tensor.utils": [],
        f"{package}.custom_recipes": [root / "transformer_engine/pytorch/custom_recipes"],
        "references": [root / "tests/pytorch/references"],
    }  # fmt: skip
    for module, folder in folders.items():
        if module not in sys.modules:
            sys.modules[module] = types.ModuleType(module)
            sys.modules[module].__path__ = [os.fspath(place) for place in folder]
    sys.modules[package].DType = None  # type: ignore[attr-defined]
    sys.modules[f"{package}.quantized_tensor"].__dict__.update(Quantizer=Quantizer, QuantizedTensorStorage=object)
    sys.modules[f"{package}.tensor.utils"].__dict__.update(is_custom=lambda _: True)
    return importlib.import_module(name)


def nvfp4(x: Any, columns: bool = False, stored: bool = False, bfloat16: bool = False, **options: Any) -> Answer:
    """Quantize a tensor, or its transpose, in blocks of 16."""
    import torch

    module = reference("transformer_engine.pytorch.custom_recipes.reference_nvfp4")
    t = torch.from_numpy(x).bfloat16() if bfloat16 else torch.from_numpy(x)
    q = module.NVFP4QuantizerRef(dtype=module.reference_utils.Fp4Formats.E2M1, **options).quantize(t)
    codes, scale = (q.data_t, q.scale_t) if columns else (q.data, q.scale)
    rows = options.get("quant_tile_shape", (1, 16))[0]  # the 16 rows of a 16 x 16 block have the same scales
    codes, scale = codes.numpy() if stored else nibbles(codes.numpy()), scale.float().numpy()[::rows]
    return {"codes": codes.T, "scale": scale.T} if columns else {"codes": codes, "scale": scale}


def block(x: Any, rows: int, power: bool, kind: str = "float8_e4m3fn") -> Answer:
    """Quantize to FP8 by blocks of rows x 128."""
    import torch

    module = reference("references.blockwise_quantizer_reference")
    q = module.BlockwiseQuantizerReference().quantize(
        torch.from_numpy(x), getattr(torch, kind), eps=0.0, pow_2_scales=power, quant_tile_shape=(rows, 128),
        munge_scale_shapes=False,
    )  # fmt: skip
    return {"codes": q.data.view(torch.uint8).numpy(), "scale": q.scale.numpy()}


def current(x: Any, kind: str = "float8_e4m3fn", bfloat16: bool = False) -> Answer:
    """Quantize a tensor to FP8 with one scale."""
    import torch

    module = reference("transformer_engine.pytorch.custom_recipes.reference_current_scaling")
    quantizer = module.CurrentScalingQuantizerRef(dtype=getattr(torch, kind), pow_2_scales=False)
    t = torch.from_numpy(x).bfloat16() if bfloat16 else torch.from_numpy(x)
    q, scale = quantizer._quantize(t)[:2]
    return {"codes": q.view(torch.uint8).numpy(), "scale": scale.numpy()}


def _four_over_six(rows: int, mode: str, bound: int) -> Operation:
    options: dict[str, Any] = {"max_block_scale": float(bound)} if bound != 256 else {}
    return Operation(
        f"NVFP4 4over6 {mode} {bound} {rows}x16", nvfp4, "tensors",
        "nvfp4_4over6" if mode == "MAE" else "nvfp4_4over6_mse",
        {"quant_tile_shape": (rows, 16), "nvfp4_use_4over6": True, "nvfp4_e4m3_max": bound,
         "nvfp4_4over6_err_mode": mode},
        options={**options, "granularity": f"{rows}x16"} if rows > 1 else options,
    )  # fmt: skip


OPERATIONS = [
    Operation("NVFP4", nvfp4, "tensors", "nvfp4_te"),
    Operation("NVFP4 columns", nvfp4, "tensors", "nvfp4_te", {"columns": True}, options={"granularity": "16x1"}),
    Operation("NVFP4 16x16", nvfp4, "tensors", "nvfp4_te_2d", {"quant_tile_shape": (16, 16)}),
    Operation("NVFP4 columns, random Hadamard transform", nvfp4, "tensors/bfloat16", "nvfp4_te_rht",
              {"columns": True, "bfloat16": True, "with_rht": True}, options={"granularity": "16x1"}),
    Operation("packing of NVFP4", nvfp4, "nibbles/e2m1fn", "e2m1fn", {"stored": True}),
    Operation("NVFP4 rows", nvfp4, "tensors", "nvfp4_te_row_scaled", {"columnwise": False, "row_scaled_nvfp4": True}),
    *(_four_over_six(rows, mode, bound) for rows in (1, 16) for mode in ("MAE", "MSE") for bound in (256, 448)),
    *(Operation(f"FP8 {rows}x128{', powers of two' * power}", block, f"{'tiles' if rows > 1 else 'blocks'}/128",
                "te_block" if power else "te_block_fp32", {"rows": rows, "power": power},
                options={"granularity": "128x128"} if rows > 1 else {})
      for rows in (1, 128) for power in (False, True)),
    Operation("FP8 1x128 E5M2", block, "blocks/128", "te_block_fp32",
              {"rows": 1, "power": False, "kind": "float8_e5m2"}, options={"format": "e5m2"}),
    Operation("FP8 tensor", current, "tensors", "te_current"),
    Operation("FP8 tensor of bfloat16", current, "tensors/bfloat16", "te_current", {"bfloat16": True}),
    Operation("FP8 tensor E5M2", current, "tensors", "te_current", {"kind": "float8_e5m2"},
              options={"format": "e5m2"}),
]  # fmt: skip

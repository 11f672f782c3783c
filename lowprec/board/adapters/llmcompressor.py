"""llm-compressor: its observers, with the version of compressed-tensors that it requires."""

from typing import Any

from .harness import Answer, Operation, nibbles

VERSIONS = ("llmcompressor", "compressed-tensors", "torch")
ENVIRONMENT = "llmcompressor"
NEEDS = ("torch", "llmcompressor", "numpy")


def nvfp4(x: Any) -> Answer:
    """Quantize a weight in blocks of 16."""
    import torch
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from llmcompressor.observers import Observer

    args = QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True,
        observer="memoryless_minmax", scale_dtype=torch.float8_e4m3fn, zp_dtype=torch.float8_e4m3fn,
    )  # fmt: skip
    module = torch.nn.Linear(x.shape[1], x.shape[0], bias=False)
    module.weight.data = torch.from_numpy(x).clone()
    observer = Observer.load_from_registry("memoryless_minmax", base_name="weight", args=args, module=module)
    p = observer(module.weight).get_qparams()
    q = quantize(torch.from_numpy(x).clone(), p["scale"], p["zero_point"], args, global_scale=p["global_scale"])
    return {"codes": nibbles(pack_fp4_to_uint8(q).numpy()), "scale": p["scale"].detach().float().numpy()}


OPERATIONS = [
    Operation("NVFP4", nvfp4, "tensors", "nvfp4_4over6", options={"four_over_six": None, "max_block_scale": 448.0})
]

"""Recipes in PyTorch models, bit for bit: `convert` a model, then train or evaluate it as before.

The three multiplications of each linear layer follow the recipe and give the bits of `lowprec.gemm`. PyTorch computes
everything else (norms, softmax, embeddings). See docs/torch.md.
"""

try:
    import torch  # noqa: F401
except ImportError:
    raise ImportError("lowprec.torch needs PyTorch: pip install 'lowprec[torch]'") from None

from .attention import attention, register_attention
from .convert import convert, frozen, load_state_dict, report, restore, state_dict
from .disagreement import mismatch
from .emulation.emulate import emulate
from .emulation.parity import parity
from .evaluation import evaluate
from .huggingface import export
from .linear import Linear, apply_codec, checkpoint_with_codec, grouped_linear, linear
from .miniature import TrainerModel, load_checkpoint
from .optim import AdamW, RoundedOptimizerState

__all__ = [
    "AdamW",
    "Linear",
    "RoundedOptimizerState",
    "TrainerModel",
    "apply_codec",
    "attention",
    "checkpoint_with_codec",
    "convert",
    "emulate",
    "evaluate",
    "export",
    "frozen",
    "grouped_linear",
    "linear",
    "load_checkpoint",
    "load_state_dict",
    "mismatch",
    "parity",
    "register_attention",
    "report",
    "restore",
    "state_dict",
]  # fmt: skip

"""Publications that ablations cite, and arms that all studies share."""

from __future__ import annotations

from .arms import Arm

DEEPSEEK_V3 = "DeepSeek-V3 technical report (arXiv:2412.19437)"
ISCA = "Insights into DeepSeek-V3 (arXiv:2505.09343)"
NVFP4 = "Pretraining LLMs with NVFP4 (arXiv:2509.25149)"
MXFP8 = "Recipes for pre-training with MXFP8 (arXiv:2506.08027)"
TRILLION = "Scaling FP8 training to trillion-token LLMs (arXiv:2409.12517)"
FP8_FORMATS = "FP8 formats for deep learning (arXiv:2209.05433)"
FP8_LM = "FP8-LM (arXiv:2310.18313)"
MEGATRON = "Megatron Core documentation, MoE"
TRANSFORMER_ENGINE = "TransformerEngine, common/recipe"
DEEPGEMM = "DeepGEMM, deep_gemm/utils/math.py"

#: Arms of a study of fixed weights: no rounding, BF16 storage only, a repeat, and a recipe that must be seen to hurt.
SAME_WEIGHTS_ARMS = (
    Arm("float32", recipe="float32", role="reference"),
    Arm("bf16", recipe="bf16", role="floor", expected="what storing activations in BF16 costs"),
    Arm("bf16_again", recipe="bf16", role="repeat", expected="the same bits"),
    Arm("fp4_naive", recipe="fp4_naive", role="control", expected="far worse than anything of 8 bits", source=NVFP4),
)
#: Arms of a study of branches: the reference, a repeat, the noise floor, and a recipe that must be detected.
BRANCH_ARMS = (
    Arm("bf16", role="reference"),
    Arm("bf16_again", role="repeat", pairs=1, expected="the same bits"),
    Arm("perturb", role="floor", expected="the spread of a change that cannot matter"),
    Arm("fp4_naive", recipe="fp4_naive", role="control", expected="worse", source=NVFP4),
)

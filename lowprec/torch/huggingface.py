"""Export of a trainer's checkpoint to Hugging Face format, in the layout of the released DeepSeek-V3."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.moe.model.config import MoEConfig

from .folder import transformers_module
from .miniature import read_checkpoint

_TOP = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_IN_A_BLOCK = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn.wq_a": "self_attn.q_a_proj", "attn.q_norm": "self_attn.q_a_layernorm", "attn.wq_b": "self_attn.q_b_proj",
    "attn.wkv_a": "self_attn.kv_a_proj_with_mqa", "attn.kv_norm": "self_attn.kv_a_layernorm",
    "attn.wkv_b": "self_attn.kv_b_proj", "attn.wo": "self_attn.o_proj",
}  # fmt: skip
_IN_A_NETWORK = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
#: Epsilon of the latent norms in transformers' attention, which ignores the configuration.
_EPS = 1e-6
#: Number of best experts of a group; the sum of their scores ranks the group.
_JUDGED_BY = 2


def hf_parameter_name(name: str) -> str:
    """Return the name that released models use for a parameter of the trainer.

    Examples
    --------
    >>> hf_parameter_name("layers.3.ffn.experts.7.w2"), hf_parameter_name("embed")
    ('model.layers.3.mlp.experts.7.down_proj.weight', 'model.embed_tokens.weight')
    >>> hf_parameter_name("layers.1.ffn.shared.w1"), hf_parameter_name("layers.0.attn.wkv_a")
    ('model.layers.1.mlp.shared_experts.gate_proj.weight', 'model.layers.0.self_attn.kv_a_proj_with_mqa.weight')
    """
    if name in _TOP:
        return f"{_TOP[name]}.weight"
    _, block, part = name.split(".", 2)
    if part in _IN_A_BLOCK:
        return f"model.layers.{block}.{_IN_A_BLOCK[part]}.weight"
    *path, leaf = part.removeprefix("ffn.").split(".")
    network = ".".join("shared_experts" if step == "shared" else step for step in path if step != "ffn")
    return ".".join(filter(None, (f"model.layers.{block}.mlp", network, _IN_A_NETWORK.get(leaf, leaf), "weight")))


def export(checkpoint: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Write a trainer's checkpoint as a folder for transformers: configuration, weights and a byte tokenizer.

    The multi-token prediction module is omitted, because transformers does not have it.

    Parameters
    ----------
    checkpoint : str or path
        Checkpoint written by ``lowprec train --out`` or `Trainer.save`.
    out : str or path
        Output folder, created if it does not exist.

    Returns
    -------
    Path
        Path of the folder.

    Raises
    ------
    CheckpointError
        If the file is not a trainer's checkpoint.
    ValueError
        If transformers' model cannot represent the trainer's; see `export_blockers`.
    ImportError
        If transformers is missing.
    """
    config, weights, biases = read_checkpoint(checkpoint)
    if reasons := export_blockers(config):
        raise ValueError(
            f"{os.fspath(checkpoint)} cannot be written as transformers' DeepSeek-V3: {'; '.join(reasons)}"
        )
    transformers = transformers_module()
    from safetensors.numpy import save_file

    further = f"layers.{config.layers}."
    tensors: dict[str, NDArray[Any]] = {
        hf_parameter_name(name): np.ascontiguousarray(array)
        for name, array in weights.items()
        if not name.startswith(further)
    }
    tensors |= {
        hf_parameter_name(name).replace(".weight", ".e_score_correction_bias"): array
        for name, array in biases.items()
        if not name.startswith(further)
    }
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    transformers.DeepseekV3Config(**_fields(config)).save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _byte_tokenizer().save(os.fspath(folder / "tokenizer.json"))
    return folder


def export_blockers(config: MoEConfig) -> list[str]:
    """Return the reasons why transformers' DeepSeek-V3 cannot represent the trainer's model, an empty list if it can.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from lowprec.moe.model.config import configs
    >>> [export_blockers(configs[name]) for name in ("nano", "pilot", "tiny", "small")]
    [[], [], [], []]
    >>> export_blockers(replace(configs["nano"], expert_groups=1, topk_groups=1, top_k=3, norm_eps=1e-5))
    ['norm_eps is 1e-05, its latent norms have 1e-06']
    """
    judged = config.top_k // config.topk_groups
    reasons = [
        (config.norm_eps != _EPS, f"norm_eps is {config.norm_eps:g}, its latent norms have {_EPS:g}"),
        (
            config.expert_groups > 1 and judged != _JUDGED_BY,
            f"a group of experts is judged by its best {judged}, there by its best {_JUDGED_BY}",
        ),
        (config.expert_groups == 1 and config.experts < _JUDGED_BY, "it needs two experts or more"),
        (not config.shared_experts, "it has a shared expert"),
        (config.swiglu_limit > 0, f"SwiGLU's inputs are cut at {config.swiglu_limit:g}, there nowhere"),
    ]
    return [words for holds, words in reasons if holds]


def _fields(c: MoEConfig) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": c.vocabulary, "hidden_size": c.dim,
        "intermediate_size": c.dense_width, "moe_intermediate_size": c.expert_width, "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads, "num_key_value_heads": c.heads, "n_shared_experts": c.shared_experts,
        "n_routed_experts": c.experts, "routed_scaling_factor": c.route_scale, "kv_lora_rank": c.kv_rank,
        "q_lora_rank": c.q_rank, "qk_rope_head_dim": c.rope_dim, "qk_nope_head_dim": c.nope_dim,
        "v_head_dim": c.value_dim, "n_group": c.expert_groups, "topk_group": c.topk_groups,
        "num_experts_per_tok": c.top_k, "first_k_dense_replace": c.dense_layers, "norm_topk_prob": True,
        "hidden_act": "silu", "max_position_embeddings": c.sequence, "rms_norm_eps": c.norm_eps,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta}, "rope_interleave": True,
        "attention_bias": False, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "dtype": "float32",
    }  # fmt: skip


def _byte_tokenizer() -> Any:
    """Return a tokenizer of UTF-8 bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab={_letter(byte): byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _letter(byte: int) -> str:
    """Return the character that byte-level tokenizers use for a byte: its own if printable, else one above 255."""
    unseen = [b for b in range(256) if not (33 <= b <= 126 or 161 <= b <= 172 or b >= 174)]
    return chr(256 + unseen.index(byte)) if byte in unseen else chr(byte)

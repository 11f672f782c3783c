"""Models of transformers with random weights: hidden size 80, two layers."""

import torch
import transformers

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def llama(dtype, attention="eager", hidden=80):
    return _made(
        transformers.LlamaForCausalLM, transformers.LlamaConfig, dtype, attention, hidden, intermediate_size=240
    )


def _made(cls, config, dtype, attention, hidden=80, **fields):
    torch.manual_seed(0)
    usual = {
        "vocab_size": 250, "hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 5,
        "num_key_value_heads": 5,
    }  # fmt: skip
    usual = {} if cls is transformers.GPT2LMHeadModel else usual
    made = cls(config(**{**usual, **fields}, attn_implementation=attention)).eval()
    for p in made.parameters():
        p.data = p.data * 4 if p.ndim > 1 else p.data + torch.randn_like(p.data) * 0.1  # peaked; no weight of one
    return made.to(DTYPES[dtype])


def gpt2(dtype, attention):
    fields = {"vocab_size": 250, "n_positions": 64, "n_embd": 80, "n_layer": 2, "n_head": 5, "eos_token_id": 0}
    return _made(transformers.GPT2LMHeadModel, transformers.GPT2Config, dtype, attention, bos_token_id=0, **fields)


def qwen3(dtype, attention):
    return _made(
        transformers.Qwen3ForCausalLM, transformers.Qwen3Config, dtype, attention, intermediate_size=96, head_dim=24,
        num_key_value_heads=1,
    )  # fmt: skip


def qwen3_moe(dtype, attention):
    return _made(
        transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig, dtype, attention, moe_intermediate_size=72,
        head_dim=24, num_key_value_heads=1, num_experts=8, num_experts_per_tok=2,
    )  # fmt: skip


def mixtral(dtype, attention):
    return _made(
        transformers.MixtralForCausalLM, transformers.MixtralConfig, dtype, attention, intermediate_size=96,
        num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip


def deepseek(dtype, attention):
    return _made(
        transformers.DeepseekV3ForCausalLM, transformers.DeepseekV3Config, dtype, attention, intermediate_size=96,
        moe_intermediate_size=40, n_shared_experts=1, n_routed_experts=8, kv_lora_rank=32, q_lora_rank=48,
        qk_rope_head_dim=16, v_head_dim=16, qk_nope_head_dim=16, n_group=2, topk_group=1, num_experts_per_tok=2,
        first_k_dense_replace=1,
    )  # fmt: skip


def neox(dtype, attention):
    return _made(transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig, dtype, attention, intermediate_size=96)


def gemma2(dtype, attention):
    return _made(
        transformers.Gemma2ForCausalLM, transformers.Gemma2Config, dtype, attention, intermediate_size=96, head_dim=16,
        num_key_value_heads=1,
    )  # fmt: skip

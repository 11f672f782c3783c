"""Processor time of a model's forward pass by the stack lowprec_sequential, as a multiple of PyTorch's.

The runs alternate, in one thread each; the ratio is that of the shortest ones. The model is a Llama of 4 layers, hidden
size 512 and random weights, and has 256 tokens.
"""

from __future__ import annotations

import copy
import time

import torch
import transformers

import lowprec as lp
import lowprec.torch

REPEATS = 9


def main() -> None:
    """Print the ratio for both implementations of attention."""
    torch.set_num_threads(1)
    lp.set_num_threads(1)
    tokens = torch.arange(256)[None]
    for attention in ("sdpa", "eager"):
        config = transformers.LlamaConfig(
            vocab_size=1000, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
            attn_implementation=attention,
        )  # fmt: skip
        models = [transformers.LlamaForCausalLM(config).eval()]
        models.append(lowprec.torch.convert(copy.deepcopy(models[0]), stack="lowprec_sequential", strict=True))
        with torch.no_grad():
            first = [model(tokens).logits for model in models]
            torch.testing.assert_close(*first)
            assert torch.equal(first[1], models[1](tokens).logits)
            runs = [[_seconds(model, tokens) for model in models] for _ in range(REPEATS)]
            shortest = [min(times) for times in zip(*runs, strict=True)]
        print(f"{attention}: PyTorch {shortest[0]:.4f} s, lowprec_sequential {shortest[1]:.4f} s, ", end="")
        print(f"{shortest[1] / shortest[0]:.2f} times")


def _seconds(model: torch.nn.Module, tokens: torch.Tensor) -> float:
    start = time.process_time()
    model(tokens)
    return time.process_time() - start


if __name__ == "__main__":
    main()

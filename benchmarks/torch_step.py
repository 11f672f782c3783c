"""Cost of exact linear layers in a torch model, and errors of a careful fake quantization.

Prints two Markdown tables: a training step of a small Llama-like model under recipes, with torch in float32 and the
usual emulation (quantize, dequantize, multiply in float32), interleaved; and the share of BF16 outputs in which that
emulation differs from the exact order of summation.
"""

import argparse
import os
import statistics
import time

import numpy as np
import torch
from torch import nn

import lowprec as lp
import lowprec.torch as lpt
from lowprec.recipe import LayerPrecision

WIDTH, HIDDEN, BLOCKS, BATCH, SEQUENCE = 256, 640, 4, 8, 128


class Block(nn.Module):
    """Attention and SwiGLU with norms, as Llama has them."""

    def __init__(self):
        super().__init__()
        self.attn_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        h = self.attn_norm(x)
        q, k, v = (p(h).unflatten(-1, (4, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        o = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(o.transpose(1, 2).flatten(-2))
        h = self.ffn_norm(x)
        return x + self.down_proj(nn.functional.silu(self.gate_proj(h)) * self.up_proj(h))


class Model(nn.Module):
    """A language model of bytes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.lm_head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.layers:
            x = block(x)
        return self.lm_head(self.norm(x))


class Fake(torch.autograd.Function):
    """The usual emulation: operands quantized and dequantized by our quantizers, products by torch in float32."""

    @staticmethod
    def forward(ctx, x, w, spec):
        ctx.spec, ctx.shape = spec, x.shape
        rows = x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(rows, w)
        return (shown(spec.fprop.a, rows) @ shown(spec.fprop.b, w).T).reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        d, spec = dy.reshape(-1, dy.shape[-1]), ctx.spec
        dx = shown(spec.dgrad.a, d) @ shown(spec.dgrad.b, w.T).T
        return dx.reshape(ctx.shape), shown(spec.wgrad.a, d.T) @ shown(spec.wgrad.b, x.T).T, None


def shown(tensor, values):
    """Return values after quantization and dequantization."""
    q = lp.quantize(np.ascontiguousarray(values.detach().numpy()), tensor)
    return torch.from_numpy(np.ascontiguousarray(q.dequantize())).reshape(values.shape)


class FakeLinear(nn.Linear):
    def forward(self, x):
        return Fake.apply(x, self.weight, self.spec)


def faked(model, recipe):
    """Return the model with emulated layers."""
    lpt.convert(model, recipe)
    specs = {name: m.spec for name, m in model.named_modules() if isinstance(m, lpt.Linear)}
    lpt.restore(model)
    for name, spec in specs.items():
        module = model.get_submodule(name)
        if spec.quantized:
            module.__class__, module.spec = FakeLinear, spec
    return model


def step(model, optimizer, tokens):
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.reshape(-1, 256), tokens[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    return loss.item()


def steps(rounds):
    """Print the first table."""
    arms = {"torch float32": Model()}
    for name in ("bf16", "dsv3", "mxfp8", "nvfp4"):
        arms[f"`{name}`, exact"] = lpt.convert(Model(), name)
    for name in ("dsv3", "mxfp8", "nvfp4"):
        arms[f"`{name}`, fake quantization"] = faked(Model(), name)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (BATCH, SEQUENCE + 1)))
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-4) for name, model in arms.items()}
    check_bits(arms["`dsv3`, exact"], tokens)
    times = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name, model in arms.items():
            start = time.perf_counter()
            step(model, optimizers[name], tokens)
            if number:
                times[name].append(time.perf_counter() - start)
    base = statistics.median(times["torch float32"])
    count = sum(p.numel() for p in arms["torch float32"].parameters())
    print(f"\nOne step of {count / 1e6:.2f} M parameters, {BATCH} x {SEQUENCE} tokens, AdamW included, "
          f"median of {rounds} interleaved; {torch.get_num_threads()} threads, torch {torch.__version__} "
          f"({torch.backends.cpu.get_cpu_capability()})\n")  # fmt: skip
    print("| one step | ms | over float32 |\n|---|---:|---:|")
    for name, found in times.items():
        median = statistics.median(found)
        print(f"| {name} | {1000 * median:.0f} | {median / base:.1f} |")


def check_bits(model, tokens):
    """Raise unless a layer in the model gives the bits of the recipe's own multiplications."""
    layer, seen = model.layers[0].down_proj, []
    handle = layer.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    model(tokens[:, :-1])
    handle.remove()
    x, y = (t.detach().reshape(-1, t.shape[-1]) for t in seen[0])
    ops = LayerPrecision.from_key(layer.key).ops()
    expected = ops.product(x.bfloat16().float().numpy(), layer.weight.detach().numpy())
    assert np.array_equal(y.numpy().view(np.uint32), expected.view(np.uint32))


def differing():
    """Print the second table."""
    print("\nShare of BF16 outputs of 128 x 256 products in which quantize, dequantize and a float32 matmul differ "
          "from the exact order\n")  # fmt: skip
    depths = (256, 1024, 4096)
    print("| recipe | data | " + " | ".join(f"K = {k}" for k in depths) + " |\n|---|---|" + "---:|" * len(depths))
    for name in ("dsv3", "dsv3_no_promotion", "mxfp8", "nvfp4"):
        spec = LayerPrecision.of(lp.recipes[name], "layers.1.attn.wq_a", 4).spec
        for data in ("normal", "all positive"):
            shares = []
            for k in depths:
                rng = np.random.default_rng(0)
                x, w = (lp.round_to(rng.standard_normal((n, k)).astype(np.float32), "bfloat16") for n in (128, 256))
                x, w = (np.abs(v) if data == "all positive" else v for v in (x, w))
                exact = LayerPrecision(spec).ops().product(x, w)
                fake = shown(spec.fprop.a, torch.from_numpy(x)) @ shown(spec.fprop.b, torch.from_numpy(w)).T
                shares.append(float((fake.bfloat16().float().numpy() != exact).mean()))
            print(f"| `{name}` | {data} | " + " | ".join(f"{share:.2%}" for share in shares) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["steps", "differing"])
    chosen = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("LOWPREC_NUM_THREADS", lp.get_num_threads())))
    if chosen.only != "differing":
        steps(chosen.rounds)
    if chosen.only != "steps":
        differing()


if __name__ == "__main__":
    main()

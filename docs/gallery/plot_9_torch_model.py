"""
An exact recipe in a torch model
================================

What does FP8 do to *my* model? `lowprec.torch` lets the linear layers of any torch model run as a recipe says, forward
and backward, bit for bit. Here a model that was trained in BF16 is trained on in DeepSeek-V3's FP8, and in FP4 without
any remedy.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import lowprec as lp
import lowprec.torch as lpt
from lowprec.moe.data.sources import load_corpus

# %%
# A model to begin with: the smallest of the catalogue, after some steps of the NumPy trainer, as a plain module of
# torch. Any model would do; `lowprec.torch.convert` takes what you have.

folder = Path(tempfile.mkdtemp())
lp.train("nano", "bf16", steps=40, out=folder / "run")
model = lpt.load_checkpoint(folder / "run" / "checkpoint.npz")
start = {name: value.clone() for name, value in model.state_dict().items()}

# %%
# Converting replaces no parameter. The report says what runs how, and what of the recipe has no place in the model:

model.use("dsv3")
print("\n".join(str(lpt.report(model)).splitlines()[:12]))

# %%
# Now the same steps of training three times, each from the same weights over the same text. Nothing of the loop knows
# about precision.

tokens = torch.from_numpy(np.array(load_corpus("stdlib").train[: 10 * 8 * 129]).reshape(10, 8, 129))


def losses(recipe):
    """Train a little and return the loss of every step."""
    model.load_state_dict(start)
    model.use(recipe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    seen = []
    for batch in tokens:
        loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return np.array(seen)


curves = {recipe: losses(recipe) for recipe in ("bf16", "dsv3", "fp4_naive")}

# %%
# A training loss goes up and down with its batches; what two recipes do to it shows in their difference. That of FP8 is
# a few hundredths of a per cent of the loss, that of FP4 shows at once. Whether such a difference is more than noise is
# a question for pairs of runs: `the instrument <how_it_works>` has them.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for recipe, curve in curves.items():
    left.plot(curve, label=recipe)
    right.plot(100 * (curve / curves["bf16"] - 1), label=recipe)
left.set(xlabel="step", ylabel="training loss (nats per byte)")
right.set(xlabel="step", ylabel="difference to bf16 (%)")
left.legend(frameon=False)

# %%
# Without training anything: how far does what FP8 predicts lie from what BF16 predicts?

model.load_state_dict(start)
with torch.no_grad():
    logits = {recipe: model.use(recipe)(tokens[0, :, :-1].long()).log_softmax(-1) for recipe in ("bf16", "dsv3")}
kl = (logits["bf16"].exp() * (logits["bf16"] - logits["dsv3"])).sum(-1)
print(f"KL(bf16 || dsv3): {kl.mean():.2e} nats per byte, at most {kl.max():.2e}")

"""
An exact recipe in a torch model
================================

lowprec runs the linear layers of any PyTorch model in a recipe, bit for bit: forward pass, gradient of the input and
gradient of the weights. It runs on a CPU and answers the question: what does this recipe do to *my* model?
"""

import torch
from matplotlib import pyplot

import lowprec.torch as lpt


def model_and_data() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)
    )
    x = torch.randn(256, 128)
    return model, x, (x[:, :10] + 0.5 * x[:, 10:20] ** 2).argmax(dim=1)


# %%
# ``convert`` changes linear layers in place and keeps parameters, hooks and names. Here it skips the last layer.

model, x, y = model_and_data()
lpt.convert(model, recipe="dsv3", skip=["4"])
print(lpt.report(model))

# %%
# Autograd and optimizers work as before. The same steps in four recipes, from the same weights on the same data:

figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
curves = {}
for recipe in ("bf16", "dsv3", "nvfp4", "fp4_naive"):
    model, x, y = model_and_data()
    lpt.convert(model, recipe=recipe, skip=["4"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    curves[recipe] = torch.tensor(losses)
    left.plot(losses, label=recipe)
    right.plot(100 * (curves[recipe] / curves["bf16"] - 1))
left.set(xlabel="step", ylabel="training loss, nats")
right.set(xlabel="step", ylabel="difference from bf16 (%)")
left.legend(frameon=False)

# %%
# The curves overlap: like many tasks, this one is too easy to show a difference between recipes. Measuring the cost
# of a recipe takes pairs of runs and a noise floor (:doc:`/generated/findings/index`).
#
# The outputs of two recipes for the same inputs and weights differ by rounding alone. The Kullback-Leibler divergence
# measures by how much:

model, x, _ = model_and_data()
outputs = {}
for recipe in ("bf16", "dsv3", "nvfp4"):
    lpt.convert(model, recipe=recipe)
    with torch.no_grad():
        outputs[recipe] = torch.log_softmax(model.eval()(x), dim=1)
for recipe in ("dsv3", "nvfp4"):
    kl = torch.nn.functional.kl_div(outputs[recipe], outputs["bf16"], log_target=True, reduction="batchmean")
    print(f"KL(bf16 || {recipe}) = {kl.item():.2e} nats")

# %%
# ``lowprec eval`` and ``lowprec mismatch`` are commands for models saved by transformers (:doc:`/torch`).

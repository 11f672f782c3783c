"""AdamW with moments and master weights in a recipe's storage formats: the trainer's AdamW, or torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from lowprec.moe.run import optim
from lowprec.moe.run.optimizer_state import StateFormat
from lowprec.recipe import Recipe, load_recipe
from lowprec.recipe.data import moments_as_dict, moments_of
from lowprec.recipe.description import State, state_of

from .arrays import values


class AdamW(torch.optim.Optimizer):
    """The trainer's AdamW for float32 torch parameters, with the same bits.

    Parameters
    ----------
    params : iterable of Tensor
        One group of contiguous float32 tensors on the CPU. Weight decay applies to those with two or more axes.
    recipe : str or Recipe
        Recipe that defines the storage of moments and master weights.
    lr : float
        Learning rate, which torch schedulers may change.
    betas, eps, weight_decay, clip
        See `lowprec.moe.run.optim.AdamW`; `clip` limits the norm of the whole gradient.

    Raises
    ------
    TypeError
        If a parameter is not float32.
    FloatingPointError
        If the norm of the gradient is not finite; raised by `step`, which then changes nothing.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        *,
        recipe: str | Recipe = "dsv3",
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        clip: float = 1.0,
    ) -> None:
        recipe = load_recipe(recipe)
        super().__init__(list(params), {"lr": lr})
        if len(self.param_groups) != 1:
            raise ValueError(
                f"lowprec.torch.AdamW: params must be one group of parameters, got {len(self.param_groups)}"
            )
        self._params: list[Tensor] = self.param_groups[0]["params"]
        for i, p in enumerate(self._params):
            if p.dtype != torch.float32 or not p.is_contiguous():
                raise TypeError(
                    f"lowprec.torch.AdamW: parameter {i} must be contiguous float32, got {p.dtype} with strides "
                    f"{p.stride()}"
                )
        weights = {str(i): values(p) for i, p in enumerate(self._params)}
        self._adamw = optim.AdamW(
            weights, moment_m=recipe.moment_m, moment_v=recipe.moment_v, master=recipe.master_weights, beta1=betas[0],
            beta2=betas[1], epsilon=eps, weight_decay=weight_decay, clip=clip,
        )  # fmt: skip
        self._recipe = recipe

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one step; a parameter without a gradient is updated with a gradient of zeros."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        zero = {i: torch.zeros_like(p) for i, p in enumerate(self._params) if p.grad is None}
        gradients = {str(i): values(zero[i] if p.grad is None else p.grad) for i, p in enumerate(self._params)}
        self._adamw.update(gradients, float(self.param_groups[0]["lr"]))
        for p in self._params:
            torch.autograd.graph.increment_version(p)  # torch does not see writes through NumPy: count them
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the stored moments, as tensors."""
        kept = {"m": self._adamw.m, "v": self._adamw.v}
        moments = {kind: {i: torch.from_numpy(a.copy()) for i, a in of.items()} for kind, of in kept.items()}
        stored = moments_as_dict(self._recipe)
        return {"steps": self._adamw.steps, "stored": stored, "lr": self.param_groups[0]["lr"], **moments}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`; its recipe may differ."""
        m, v = ({i: t.numpy() for i, t in state_dict[kind].items()} for kind in ("m", "v"))
        self._adamw.set_moments(moments_of(state_dict["stored"], "AdamW's state"), m, v)
        self._adamw.steps, self.param_groups[0]["lr"] = int(state_dict["steps"]), state_dict["lr"]


class RoundedOptimizerState:
    """Rounding of a torch AdamW's state after every step: torch's arithmetic with a recipe's storage formats.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Optimizer with ``exp_avg`` and ``exp_avg_sq`` for each parameter.
    m, v, master : TensorSpec or str
        Storage of the moments and master weights, or its notation in recipes, such as ``"bfloat16"`` or
        ``"e4m3fn 1x128"``.

    Raises
    ------
    ValueError
        If the optimizer does not have such moments; raised at the first step.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, m: State | str = "bfloat16", v: State | str = "bfloat16",
        master: State | str = "float32",
    ) -> None:  # fmt: skip
        self._formats = {"exp_avg": StateFormat(state_of(m)), "exp_avg_sq": StateFormat(state_of(v))}
        self._master = StateFormat(state_of(master))
        self._handle = optimizer.register_step_post_hook(self._round)

    def _round(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if not (state := optimizer.state.get(p)):
                    continue
                if odd := [name for name in self._formats if name not in state]:
                    raise ValueError(
                        f"lowprec.torch.RoundedOptimizerState: formats must be of states of "
                        f"{type(optimizer).__name__}, got {odd[0]!r}"
                    )
                for name, form in self._formats.items():
                    self._store(form, state[name])
                self._store(self._master, p)

    @staticmethod
    def _store(form: StateFormat, t: Tensor) -> None:
        if not form.exact:
            array = values(t).copy()
            form.round(array)
            with torch.no_grad():
                t.copy_(torch.from_numpy(array))

    def remove(self) -> None:
        """Remove the hook from the optimizer."""
        self._handle.remove()

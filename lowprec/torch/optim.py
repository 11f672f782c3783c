"""AdamW with moments and master weights kept as a recipe says: the trainer's, or torch's with the recipe's storage."""

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
    """The trainer's AdamW over float32 parameters of torch, in place: the same bits.

    Parameters
    ----------
    params : iterable of Tensor
        float32, on the CPU, contiguous; those with two or more axes decay. One group.
    recipe : str or Recipe
        Says how moments and master weights are stored.
    lr : float
        Learning rate; schedulers of torch may change it.
    betas, eps, weight_decay, clip
        As for `lowprec.moe.run.optim.AdamW`; `clip` is the largest norm of the whole gradient.

    Raises
    ------
    TypeError
        For a parameter that is not float32.
    FloatingPointError
        From `step`, if the gradient's norm is not finite; then nothing was changed.
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
            raise ValueError("lowprec.torch.AdamW: one group of parameters, not several")
        self._params: list[Tensor] = self.param_groups[0]["params"]
        for i, p in enumerate(self._params):
            if p.dtype != torch.float32 or not p.is_contiguous():
                raise TypeError(f"lowprec.torch.AdamW: parameter {i} is {p.dtype}; contiguous float32 is needed")
        weights = {str(i): values(p) for i, p in enumerate(self._params)}
        self._adamw = optim.AdamW(
            weights, moment_m=recipe.moment_m, moment_v=recipe.moment_v, master=recipe.master, beta1=betas[0],
            beta2=betas[1], epsilon=eps, weight_decay=weight_decay, clip=clip,
        )  # fmt: skip
        self._recipe = recipe

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; parameters without a gradient count as having one of zeros."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        zero = {i: torch.zeros_like(p) for i, p in enumerate(self._params) if p.grad is None}
        gradients = {str(i): values(zero[i] if p.grad is None else p.grad) for i, p in enumerate(self._params)}
        self._adamw.update(gradients, float(self.param_groups[0]["lr"]))
        for p in self._params:
            torch.autograd.graph.increment_version(p)  # what was written past torch, it must know of
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the moments as stored, as tensors."""
        kept = {"m": self._adamw.m, "v": self._adamw.v}
        moments = {kind: {i: torch.from_numpy(a.copy()) for i, a in of.items()} for kind, of in kept.items()}
        stored = moments_as_dict(self._recipe)
        return {"steps": self._adamw.steps, "stored": stored, "lr": self.param_groups[0]["lr"], **moments}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, of the same recipe or another one."""
        m, v = ({i: t.numpy() for i, t in state_dict[kind].items()} for kind in ("m", "v"))
        self._adamw.set_moments(moments_of(state_dict["stored"], "AdamW's state"), m, v)
        self._adamw.steps, self.param_groups[0]["lr"] = int(state_dict["steps"]), state_dict["lr"]


class StateFormats:
    """Rounds what an AdamW of torch keeps, after every step: torch's arithmetic, a recipe's storage.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        With ``exp_avg`` and ``exp_avg_sq`` for each parameter.
    m, v, master : TensorSpec or str
        Storage, or its words in a recipe: ``"bfloat16"``, ``"e4m3fn 1x128"``.

    Raises
    ------
    ValueError
        At the first step, if the optimizer keeps no such moments.
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
                    raise ValueError(f"lowprec.torch.StateFormats: {type(optimizer).__name__} keeps no {odd[0]!r}")
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
        """Let the optimizer alone again."""
        self._handle.remove()

"""Dispatch mode that computes the operations of PyTorch by the rules of a stack."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from lowprec.attn.tiles import Call
from lowprec.order.order import FormatName
from lowprec.order.probed import RevealError
from lowprec.parity.classes import Classes, Search, with_addend
from lowprec.parity.operations import Bounded, Elements, Gelu, Loop, Moves, Power, Rule, Stepped, rounded
from lowprec.parity.stack import Stack
from lowprec.parity.sums import ComposedAttention, Flash, Product, Rows, Sum

from .attention import Bfloat16Blocks, Float32Blocks
from .comparison import DTYPES, check_bound
from .gelu import gelu_for
from .layout import ALIGNMENT, Floats, copied, fill, like, loop_of, values


class StackMode(TorchDispatchMode):
    """Dispatch mode that computes operations by a stack, in forward passes on a CPU.

    Parameters
    ----------
    stack : Stack
        The stack.
    strict : bool
        Whether an operation without a rule, or to which its rule does not apply, is an error. Otherwise PyTorch
        computes it.

    Attributes
    ----------
    unreached : dict
        Reason why PyTorch computed an operation, by name of the operation.
    """

    def __init__(self, stack: Stack, *, strict: bool = True) -> None:
        super().__init__()
        needed, here = stack.capability, torch.backends.cpu.get_cpu_capability()
        if needed not in ("", here):
            raise ValueError(f"emulate: CPU capability must be {needed} for stack {stack.name!r}, got {here}")
        self.stack, self.strict = stack, strict
        self.unreached: dict[str, str] = {}
        self.searches: dict[Rule, Search] = {}
        self.plans: dict[Any, Classes] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "lowprec":
            return func(*args, **kwargs)  # of a recipe
        schema = func._schema
        name = schema.name.removeprefix("aten::")
        given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        names = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        written = [t for t in tree_leaves([given.get(a) for a in names]) if isinstance(t, torch.Tensor)]
        is_written = bool(names)
        operation = name.removesuffix("_") if is_written else name
        if given.get("approximate", "none") != "none":
            operation += f"_{given['approximate']}"
        if self.strict and any(t.is_floating_point() for t in written):
            self.stack.rule(operation)  # an unknown operation is an error before it writes
        storages = {t.untyped_storage().data_ptr() for t in written}
        before, options = args, kwargs
        if storages:
            before, options = tree_map_only(
                torch.Tensor, lambda t: copied(t) if t.untyped_storage().data_ptr() in storages else t, (args, kwargs)
            )
        empty = None if is_written else self.empty(operation, args)
        out = func(*args, **kwargs) if empty is None else empty
        first = out[0] if isinstance(out, tuple | list) else out
        if not (isinstance(first, torch.Tensor) and (first.is_floating_point() or first.is_complex())):
            return out
        if not is_written and schema.returns[0].alias_info is not None:
            return out  # a view
        before = before[1:2] if name in ("copy", "copy_") else before
        try:
            rule = self.stack.rule(operation)
            if isinstance(rule, Moves) and "reduce" in schema.overload_name:
                raise ValueError(f"emulate: {name} must only move values, got a reduction, {schema.overload_name!r}")
            if isinstance(rule, Moves) or not first.numel():
                return out
            self.check_dtypes(name, first, before)
            self.compute(name, operation, rule, before, options, first)
        except ValueError as error:
            if self.strict:
                raise
            self.unreached.setdefault(operation, str(error).removeprefix("emulate: "))
            return out if empty is None else func(*args, **kwargs)
        return out

    def empty(self, operation: str, args: Any) -> torch.Tensor | None:
        """Return a tensor for the result of an operation, or None if its bits depend on PyTorch's result."""
        rule = dict(self.stack.rules).get(operation)
        if not isinstance(rule, Product) or rule.probed or operation not in ("mm", "bmm", "addmm"):
            return None
        a, b = args[-2:]
        return torch.empty(*a.shape[:-1], b.shape[-1], dtype=a.dtype)

    def check_dtypes(self, name: str, out: torch.Tensor, args: Any) -> None:
        """Raise ValueError unless a result and the operands are of dtypes that rules compute."""
        if out.dtype not in DTYPES:
            raise ValueError(f"emulate: {name} must be in float32 or bfloat16, got {out.dtype}")
        for a in args:
            if isinstance(a, torch.Tensor) and (a.is_floating_point() or a.is_complex()) and a.dtype not in DTYPES:
                raise ValueError(f"emulate: {name} must have operands in float32 or bfloat16, got {a.dtype}")

    def compute(self, name: str, operation: str, rule: Rule, args: Any, kwargs: Any, out: torch.Tensor) -> None:
        """Replace PyTorch's result of an operation by that of its rule."""
        out.copy_(self.own(name, rule, args, kwargs, out))

    def own(self, name: str, rule: Rule, args: Any, kwargs: Any, out: torch.Tensor) -> torch.Tensor:
        """Return a rule's outputs of an operation; those of PyTorch if it moves values or has a bound."""
        if isinstance(rule, Moves | Bounded):
            if isinstance(rule, Bounded):
                check_bound(name, rule, args[0], out)
            return out
        try:
            mine = self.computed(name, rule, args, kwargs, out)
        except RevealError as error:
            shapes = ", ".join(str(tuple(a.shape)) for a in args if isinstance(a, torch.Tensor))
            raise ValueError(f"emulate: {name} must be a sum in one order, got operands {shapes}: {error}") from error
        except (TypeError, IndexError, AttributeError, RuntimeError) as error:
            kinds = ", ".join(type(a).__name__ for a in args)
            raise ValueError(f"emulate: {name} must have other arguments, got {kinds}: {error}") from error
        return torch.from_numpy(np.ascontiguousarray(mine)).to(out.dtype).reshape(out.shape)

    def computed(self, name: str, rule: Rule, args: Any, kwargs: Any, out: torch.Tensor) -> Floats:
        """Return the stack's outputs of an operation."""
        dtype = DTYPES[out.dtype]
        for factor in ("alpha", "beta"):
            if kwargs.get(factor, 1) != 1:
                raise ValueError(f"emulate: {name} must have {factor} 1, got {kwargs[factor]}")
        if isinstance(rule, Elements):
            x = self.elements(name, rule, args, kwargs, out)
        elif isinstance(rule, Sum):
            x = self.sum(rule, args[0], (*args[1:2], None)[0] or range(args[0].dim()), dtype)
        elif isinstance(rule, Product):
            x = self.product(name, rule, args, dtype)
        elif isinstance(rule, Rows) and name == "native_layer_norm":
            given, shape, weight, bias, eps = args
            if odd := [p.dtype for p in (weight, bias) if p is not None and p.dtype != given.dtype]:
                raise ValueError(f"emulate: {name} must have parameters in {given.dtype}, got {odd[0]}")
            parameters = [None if p is None else values(p).ravel() for p in (weight, bias)]
            x = rule.compute(values(given).reshape(-1, math.prod(shape)), dtype, *parameters, eps=eps)
        elif isinstance(rule, Rows):
            if args[1] not in (-1, args[0].dim() - 1) or args[0].dtype != out.dtype:
                raise ValueError(f"emulate: {name} must be along the last axis, in one dtype, got axis {args[1]}")
            x = rule.compute(values(args[0]), dtype)
        elif isinstance(rule, Flash):
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # as in the kernel's blocks
            try:
                x = self.flash(rule, args, kwargs, dtype)
            finally:
                torch.set_num_threads(threads)
        elif isinstance(rule, ComposedAttention):
            x = self.composed(args, kwargs)
        else:
            raise ValueError(f"emulate: {name} must have a rule for an operation of PyTorch, got {type(rule).__name__}")
        return rounded(x, dtype)

    def elements(self, name: str, rule: Elements, args: Any, kwargs: Any, out: torch.Tensor) -> Floats:
        """Convert the operands to a common dtype and return the results of an elementwise operation."""
        if kwargs.get("rounding_mode") is not None:
            raise ValueError(f"emulate: rounding_mode of {name} must be None, got {kwargs['rounding_mode']!r}")
        if isinstance(rule, Power) and (not isinstance(args[0], torch.Tensor) or isinstance(args[1], torch.Tensor)):
            kinds = ", ".join(type(a).__name__ for a in args[:2])
            raise ValueError(f"emulate: {name} must be of a tensor and a number, got {kinds}")
        if isinstance(rule, Stepped) and args[0].dtype != out.dtype:
            raise ValueError(f"emulate: {name} must have operands in {out.dtype}, got {args[0].dtype}")
        operands = args[:2] if len(args) == 2 else args[:1]
        common = torch.result_type(*operands) if len(operands) == 2 else out.dtype
        dtype = DTYPES.get(common, DTYPES[out.dtype])
        tensors = [a for a in operands if isinstance(a, torch.Tensor)]
        axes, run = loop_of(tensors, out)
        if isinstance(rule, Gelu):
            rule = gelu_for(rule, kwargs.get("approximate", "none"), tensors[0], out, run)
        if isinstance(rule, Stepped) and rule.has_rests and torch.get_num_threads() > 1 and out.numel() >= rule.grain:
            raise ValueError(
                f"emulate: {name} with threads must have at most {rule.grain - 1} elements, got {out.numel()}"
            )
        numbers = list[Any]()
        for i, a in enumerate(operands):
            x = values(a) if isinstance(a, torch.Tensor) else np.asarray(a, np.float32)
            # PyTorch keeps a number that multiplies or divides a tensor in float32, if it is the right operand
            is_kept = i == 1 and x.ndim == 0 and name.rstrip("_") in ("mul", "div", "pow")
            x = x if is_kept or len(operands) == 1 else rounded(x, dtype)
            numbers.append(np.broadcast_to(x, out.shape).transpose(axes) if isinstance(a, torch.Tensor) else x)
        with np.errstate(all="ignore"):
            found = rounded(rule.compute(Loop(dtype, run), *numbers), dtype)
        return found.transpose(np.argsort(axes))

    def sum(self, rule: Sum, x: torch.Tensor, dims: Any, dtype: FormatName) -> Floats:
        """Return sums, or means, over some axes."""
        # PyTorch converts what it adds to the dtype of the sums, and adds for means in float32
        dtype = "float32" if rule.mean != "none" else dtype
        x = x.to(next(kind for kind, fmt in DTYPES.items() if fmt == dtype))
        axes = sorted(d % x.dim() for d in dims)
        kept = [d for d in range(x.dim()) if d not in axes]
        n = math.prod(x.shape[d] for d in axes)
        if not n:
            with np.errstate(all="ignore"):
                return rule.finish(np.zeros([x.shape[d] for d in kept], np.float32), 0)
        if any(x.stride(d) == 0 and x.shape[d] > 1 for d in axes):
            raise ValueError("emulate: a sum must be over axes with nonzero strides, got an expanded axis")
        buffer = like(x)

        def probe(a: Floats, b: Floats, c: float) -> Floats:
            terms = torch.from_numpy(a).reshape([x.shape[d] if d in axes else 1 for d in range(x.dim())])
            fill(buffer, terms)
            return values(buffer.sum(axes)).ravel()

        plan = self.plan(("sum", *axes), rule, "sum", probe, n, dtype, [x], operands=1)
        rows = values(x).transpose([*kept, *axes]).reshape(-1, n)
        out = np.empty(len(rows), np.float32)
        for i, order in enumerate(plan.orders):
            mine = plan.of(out.shape) == i
            out[mine] = order.sum(rows[mine])
        return rule.finish(out, n)

    def product(self, name: str, rule: Product, args: Any, dtype: FormatName) -> Floats:
        """Return a matrix product, or products of groups of rows."""
        if name == "_grouped_mm":
            ends = args[2].tolist()
            parts = [
                self.product("mm", rule, (args[0][start:stop], args[1][i]), dtype)
                for i, (start, stop) in enumerate(zip([0, *ends], ends, strict=False))
                if stop > start
            ]
            return np.concatenate(parts)
        c, a, b = args if len(args) == 3 else (None, *args)
        if c is not None and c.dim() != 1:
            raise ValueError(f"emulate: {name} must have an addend [N], got shape {tuple(c.shape)}")
        return self.products(rule, a, b, c, dtype)

    def products(
        self,
        rule: Product | Flash,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        dtype: FormatName,
        at: int = -1,
    ) -> Floats:
        """Return A B + C of matrices or batches; `at`, unless negative, is the result's address modulo 16 elements."""
        if not a.shape[-1]:
            zeros = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
            return zeros if c is None else zeros + values(c)
        if a.shape[-1] > 1 and 0 in (a.stride(-1), b.stride(-2)):
            raise ValueError("emulate: a product must be over an axis with a nonzero stride, got an expanded axis")
        terms = values(a), np.swapaxes(values(b), -1, -2), None if c is None else values(c)
        if not rule.probed:
            return self.plan("", rule, "", None, a.shape[-1], dtype, [], addend=c is not None).sums(*terms)
        buffers = [like(t) for t in (a, b)]
        addend = None if c is None else like(c)
        m, n = a.shape[-2], b.shape[-1]

        def probe(x: Floats, y: Floats, z: float) -> Floats:
            fill(buffers[0], torch.from_numpy(x))
            fill(buffers[1], torch.from_numpy(y)[:, None])
            if addend is not None:
                addend.fill_(z)
                return values(torch.addmm(addend, *buffers)).ravel()
            if at >= 0:
                return values(
                    torch.mm(*buffers, out=torch.zeros(m * n + 16, dtype=a.dtype)[at : at + m * n].view(m, n))
                ).ravel()
            return values(torch.matmul(*buffers)).ravel()

        given = [a, b] if c is None else [a, b, c]
        plan = self.plan(("product", at), rule, "product", probe, a.shape[-1], dtype, given, addend=c is not None)
        return plan.sums(*terms)

    def plan(
        self, what: Any, rule: Any, name: str, probe: Any, n: int, dtype: FormatName, given: Any, **kind: Any
    ) -> Classes:
        """Return the orders for the layout of some tensors: those of the rule unless it is probed, else PyTorch's."""
        if not rule.probed:
            order = rule.order(n, dtype=dtype, out_format="float32" if "seen" in kind else dtype)
            return Classes.one(with_addend(order, n) if kind.get("addend") else order)
        layout = [(tuple(t.shape), t.stride(), t.data_ptr() % ALIGNMENT) for t in given]
        key = (rule, str(what), dtype, torch.get_num_threads(), *layout)
        if key not in self.plans:
            search = self.searches.setdefault(rule, Search(rule.orders))
            self.plans[key] = search.classes(name, probe, n, dtype, **kind)
        return self.plans[key]

    def flash(self, rule: Flash, args: Any, kwargs: Any, dtype: FormatName) -> Floats:
        """Compute attention block by block."""
        query, key, value = args[:3]
        causal, mask, scale = (*args[4:], False)[0], kwargs.get("attn_mask"), kwargs.get("scale")
        (batch, heads, m, d), (_, groups, n, _) = query.shape, key.shape
        call = Call(m, n, d, value.shape[3])
        tile = rule.kernel(dtype).tile_of(call)
        if n > tile.keys_of(call):
            raise ValueError(f"emulate: flash attention must have at most {tile.keys_of(call)} keys, got {n}")
        rows = rule.kernel(dtype).schedule.queries(call, tile)
        factor = np.float32(1 / math.sqrt(d) if scale is None else scale)
        hidden = None if mask is None else values(mask.expand(batch, heads, m, n))
        if causal:
            hidden = np.broadcast_to(np.where(np.arange(n) > np.arange(m)[:, None], -np.inf, 0), (batch, heads, m, n))
        out = np.empty((batch, heads, m, value.shape[3]), np.float32)
        for b, h, start in itertools.product(range(batch), range(heads), range(0, m, rows)):
            part = slice(start, start + rows)
            q, k, v = query[b, h, part], key[b, h * groups // heads], value[b, h * groups // heads]
            seen = None if hidden is None else hidden[b, h, part].astype(np.float32)
            products = Float32Blocks if dtype == "float32" else Bfloat16Blocks
            blocks = products(self, rule, q, k, v, min(rows, m))
            with np.errstate(all="ignore"):
                out[b, h, part] = rule.block(blocks.scores(), factor, seen, dtype, blocks.times_values)
        return out

    def composed(self, args: Any, kwargs: Any) -> Floats:
        """Compute attention in float32 by the stack's rules of products and of the softmax."""
        query, key, value = (values(t) for t in args[:3])
        dropout, causal = args[3] if len(args) > 3 else 0.0, len(args) > 4 and args[4]
        if dropout:
            raise ValueError(f"emulate: dropout of attention must be 0, got {dropout}")
        (m, d), (n, groups) = query.shape[2:], (key.shape[2], query.shape[1] // key.shape[1])
        key, value = (np.repeat(x, groups, 1) for x in (key, value))
        mask, scale = kwargs.get("attn_mask"), kwargs.get("scale")
        product, softmax = (self.stack.rule(name) for name in ("bmm", "_safe_softmax"))
        if not isinstance(product, Product) or product.probed or not isinstance(softmax, Rows):
            raise ValueError("emulate: attention must have rules of bmm, not probed, and _safe_softmax, got others")
        scores = Classes.one(product.order(d)).sums(query, key) * np.float32(
            1 / math.sqrt(d) if scale is None else scale
        )
        scores = scores if mask is None else scores + values(mask)
        if causal:
            scores = np.where(np.arange(n) > np.arange(m)[:, None], np.float32(-np.inf), scores)
        return Classes.one(product.order(n)).sums(softmax.compute(scores, "float32"), value.swapaxes(2, 3))

"""Description of an attention kernel: all fields that affect the bits of its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._checks import check_optional_int, check_positive, check_positive_float32, check_real
from .._values import Value, normalize_fields
from ..format.catalogue import Format, formats
from ..format.policy import Policy, policies
from ..special.exp2 import Exp2, RoundedExp2
from ..special.reciprocal import Reciprocal, RoundedReciprocal
from ..special.tanh import Tanh
from ..tensorcore.accumulator import Accumulator
from .scales import BlockScales, HeadScales, OperandScales, ThreadScales
from .schedules import FlashAttention3, SageAttention3, TritonFused
from .sinks import Sink
from .splits import Combine
from .sums import (
    Base2LogSumExp,
    Floats,
    LogSumExp,
    NatsLogSumExp,
    Numbers,
    OctavesLogSumExp,
    QuadSum,
    RowSum,
    TermwiseLogSumExp,
)
from .tiles import ALL_KEYS, Call, KeyTile, Schedule

_QUAD, _ROUNDED, _INVERSE, _HOPPER = QuadSum(), RoundedExp2(), RoundedReciprocal(), FlashAttention3()
_BY_HEAD, _NATS = HeadScales(), NatsLogSumExp()

#: Fields that only kernels with 2^x, tiles one by one and scales of heads have; those with an exp2 of base e lack more.
_PLAIN = ("rescale_threshold", "gradient_tiles", "sink", "descale_first")
_IN_OCTAVES = ("p_offset", *_PLAIN, "combine")
_OF_HEADS = (
    "scales_first", "scales_operands", "adds_mask", "normalizes_p", "softcap", "propagates_nan", "p_scale",
)  # fmt: skip
_OF_ORDER = ("last_tile_first", "product_block")
_OF_SCORES = ("rescale_threshold", "gradient_tiles", "descale_first", *_OF_HEADS)
_OF_ANY = (*_PLAIN, "combine", *_OF_HEADS)
_ONE_BY_ONE = ("p_offset", *_PLAIN, *_OF_HEADS, "last_tile_first", "promote_every", "fused_shift", "empty_scale")


class GradientTile(NamedTuple):
    """Tile of the backward pass for head sizes up to `head_dim`: numbers of queries, keys, and columns per load.

    `unmasked` is the number of queries without a mask (0: as `queries`).
    """

    head_dim: int
    queries: int
    keys: int
    columns: int
    unmasked: int = 0

    def queries_of(self, call: Call) -> int:
        """Return the queries per tile of a call with a normalized mask."""
        return self.unmasked if self.unmasked and call.left == call.right == -1 else self.queries


@dataclass(frozen=True, eq=False, repr=False)
class AttentionKernel(Value):
    """Attention kernel: S = Q K^T by tiles of keys, online softmax in float32, and O = P V with P in low precision.

    For each tile of keys, with m the row's maximum so far, s the scale times log2(e), and all operations in float32::

        S = Q K^T                                    # `scores`, an accumulator
        m' = max(m, row maximum of S)                # kept at m while (m - m') s >= -`rescale_threshold`
        a = 2^((m - m') s)
        P = 2^(S s - (m' s - `p_offset`))            # `exp2`
        l = a l + row sum of P                       # `row_sum`, before P is rounded
        O = (O a) + round(P) V                       # `p_format`; `values`, an accumulator that starts from O

    The result is O times 1/l (`reciprocal`) and the scale of V.

    Parameters
    ----------
    name : str
        Name in tables and messages.
    scores, values : Accumulator
        Tensor cores of Q K^T and of P V.
    operands : Format
        Format of Q and K, and of V unless `v_format` is given.
    p_format : Format
        Format of P in the second product.
    p_policy : Policy
        Overflow rule of the conversion of P.
    key_tiles : tuple of KeyTile
        Keys per tile by head size, in increasing order; the last row gives the largest head size.
    schedule : Schedule
        Rule that selects the tiles of a call, and the order in which a block of queries visits them.
    row_sum : RowSum
        Order in which P is added.
    exp2 : Exp2
        Function that computes P.
    reciprocal : Reciprocal
        Function that computes 1/l.
    p_offset : float
        Exponent of the power of two that multiplies both P and the sum l, so that it cancels in the output.
    p_scale : float
        Factor of P after its sum and before its conversion; its rounded reciprocal multiplies V's scale.
    rescale_threshold : float
        Growth of the maximum, in octaves, up to which the old maximum is kept. P may then exceed 2^p_offset.
    promote_every : int or None
        Number of tiles after which P V is added to the output in float32 and restarts from zero; None: the tensor core
        accumulates O over all tiles.
    fused_promotion : bool
        Whether the rescaling of the output and the addition of P V are one fused multiply-add. `promote_every` must
        then be 1.
    last_tile_first : bool
        Whether tiles run from the last key to the first.
    fused_scores : bool
        Whether S s - m s is one fused multiply-add.
    fused_shift : bool
        Whether m s - p_offset is one fused multiply-add.
    scales_first : bool
        Whether scores are multiplied by the scale, and rounded, before their maximum is taken.
    scales_operands : bool
        Whether Q and K, instead of the scores, are multiplied by the square root of the scale's magnitude and rounded
        to float32; Q takes the sign of a negative scale.
    adds_mask : bool
        Whether -inf is added to the scores of hidden keys, so that NaN and +inf give NaN, instead of replacing them.
    normalizes_p : bool
        Whether P is multiplied by 1/l before the second product. Tiles must then hold all keys.
    product_block : int or None
        Largest number of products in one chain of an accumulator, see `blocked_product`; None: unlimited.
    propagates_nan : bool
        Whether the maximum of a row with a NaN score is NaN. Only a sum of 0, which counts as 1, then marks a row as
        empty.
    flush_subnormals : bool
        Whether subnormal operands and results of float32 operations count as zero (``--use_fast_math``).
    rounded_log2_e : bool
        Whether log2(e) is rounded to float32 before it is multiplied by the softmax scale.
    descale_first : bool
        Whether the scales of Q and K multiply the softmax scale before log2(e) does.
    empty_scale : float
        Factor of O in rows with a sum of 0 or NaN; with scales of threads and in `TritonFused`, such sums are not
        replaced.
    lse : LogSumExp
        Rule of the log-sum-exp.
    combine : Combine or None
        How split keys are divided and combined; None: the kernel does not split keys.
    sink : Sink or None
        How attention sinks are added; None: the kernel takes no sinks.
    softcap : Tanh or None
        Function that caps scores: ``tanh(S scale / cap)`` then replaces S, and cap replaces the scale; None: the kernel
        takes no softcap.
    gradient_tiles : tuple of GradientTile
        Tiles of the backward pass by head size, in increasing order; empty: no backward pass.
    plain_gradient : bool
        Whether training takes the gradient of attention without the kernel, from a softmax and an output that it
        computes again. If not, it takes the kernel's output and log-sum-exp, which may differ from them.
    scales : OperandScales
        How Q, K and V are quantized, and which numbers their scales multiply.
    v_format : Format or None
        Format of V; None: `operands`.
    output_format : Format
        Default format of the output.
    source : str
        Reference for the fields.
    decided : str
        Operations that no published source determines, with the choices made here.
    """

    name: str = dataclasses.field(compare=False)
    scores: Accumulator
    values: Accumulator
    operands: Format
    p_format: Format
    key_tiles: tuple[KeyTile, ...]
    schedule: Schedule = _HOPPER
    p_policy: Policy = policies["ocp_sat"]
    row_sum: RowSum = _QUAD
    exp2: Exp2 = _ROUNDED
    reciprocal: Reciprocal = _INVERSE
    p_offset: int | float = 0
    p_scale: float = 1.0
    rescale_threshold: float = 0.0
    promote_every: int | None = None
    fused_promotion: bool = False
    last_tile_first: bool = True
    fused_scores: bool = True
    fused_shift: bool = True
    scales_first: bool = False
    scales_operands: bool = False
    adds_mask: bool = False
    normalizes_p: bool = False
    product_block: int | None = None
    propagates_nan: bool = False
    flush_subnormals: bool = True
    rounded_log2_e: bool = False
    descale_first: bool = False
    empty_scale: float = 0.0
    lse: LogSumExp = _NATS
    combine: Combine | None = None
    sink: Sink | None = None
    softcap: Tanh | None = None
    gradient_tiles: tuple[GradientTile, ...] = ()
    plain_gradient: bool = False
    scales: OperandScales = _BY_HEAD
    v_format: Format | None = None
    output_format: Format = formats["bfloat16"]
    source: str = dataclasses.field(default="user-defined", compare=False)
    decided: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = f"AttentionKernel {self.name}"
        for field, kind in (
            ("scores", Accumulator), ("values", Accumulator), ("operands", Format), ("p_format", Format),
            ("p_policy", Policy), ("row_sum", RowSum), ("exp2", Exp2), ("reciprocal", Reciprocal),
            ("output_format", Format), ("schedule", Schedule), ("scales", OperandScales), ("lse", LogSumExp),
        ):  # fmt: skip
            if not isinstance(getattr(self, field), kind):
                raise TypeError(f"{caller}: {field} must be an object of {kind.__name__}, got {getattr(self, field)!r}")
        object.__setattr__(self, "key_tiles", tuple(KeyTile(*row) for row in self.key_tiles))
        object.__setattr__(self, "gradient_tiles", tuple(GradientTile(*row) for row in self.gradient_tiles))
        sizes = [row.sizes for row in self.key_tiles]
        if not sizes or sizes != sorted(set(sizes)) or any(keys < 1 for row in self.key_tiles for keys in row[:5]):
            raise ValueError(
                f"{caller}: key_tiles must be rows of positive integers by increasing head size, got {sizes}"
            )
        if self.normalizes_p and any(
            keys != ALL_KEYS for row in self.key_tiles for keys in (*row[1:4], row[5] or ALL_KEYS)
        ):
            raise ValueError(
                f"{caller}: key_tiles must have all keys in one tile with normalizes_p, got {self.key_tiles}"
            )
        self.scales.check_tiles(caller, self.key_tiles)
        offset = check_real(caller, "p_offset", self.p_offset)
        if not abs(offset) <= 64:
            raise ValueError(f"{caller}: p_offset must be from -64 to 64, got {self.p_offset}")
        object.__setattr__(self, "p_offset", int(offset) if offset == int(offset) else offset)
        check_optional_int(caller, "promote_every", self.promote_every, 1)
        check_optional_int(caller, "product_block", self.product_block, 1)
        check_positive_float32(caller, "p_scale", self.p_scale)
        check_real(caller, "empty_scale", self.empty_scale)
        check_positive(caller, "rescale_threshold", self.rescale_threshold, zero=True)
        if self.fused_promotion and self.promote_every != 1:
            raise ValueError(f"{caller}: promote_every must be 1 with fused_promotion, got {self.promote_every}")
        for field, optional in (("combine", Combine), ("sink", Sink), ("softcap", Tanh), ("v_format", Format)):
            if not isinstance(value := getattr(self, field), optional | None):
                raise TypeError(f"{caller}: {field} must be an object of {optional.__name__} or None, got {value!r}")
        self._check_combinations(caller)
        self.scores.check_inputs(self.operands, self.operands)
        self.values.check_inputs(self.p_format, self.values_format)

    def _check_combinations(self, caller: str) -> None:
        """Raise ValueError if a field has a value that another field's kind excludes."""
        has_scaled_maxima, defaults = self.schedule.has_scaled_maxima, self.__dataclass_fields__
        forward = {"last_tile_first": False}
        scaled = Base2LogSumExp if isinstance(self.schedule, TritonFused) else TermwiseLogSumExp
        causes: tuple[tuple[str, bool, type[LogSumExp], Sequence[str], dict[str, Any]], ...] = (
            ("an exp2 of base e", self.exp2.is_natural, NatsLogSumExp, _IN_OCTAVES, {}),
            ("tiles in pairs", self.schedule.is_paired, TermwiseLogSumExp, _ONE_BY_ONE, forward | {"empty_scale": 1.0}),
            ("scaled maxima", has_scaled_maxima, scaled, (*_OF_SCORES, "p_offset", "last_tile_first"), forward),
            ("scales of threads", self.has_thread_scales, OctavesLogSumExp, (*_OF_ANY, "last_tile_first"), forward),
            ("scales of blocks", self.has_block_scales, OctavesLogSumExp, (*_OF_ANY, *_OF_ORDER), {}),
        )
        for cause, holds, rule, names, others in causes:
            for name in names if holds else ():
                plain, value = others.get(name, defaults[name].default), getattr(self, name)
                if value != plain:
                    raise ValueError(f"{caller}: {name} must be {plain} with {cause}, got {value!r}")
            if holds and not isinstance(self.lse, rule):
                raise ValueError(f"{caller}: lse must be a {rule.__name__} with {cause}, got {self.lse!r}")
        if isinstance(self.schedule, SageAttention3) != self.has_block_scales:
            raise ValueError(
                f"{caller}: schedule must be SageAttention3 with scales of blocks only, got {self.schedule}"
            )
        if self.has_block_scales and not self.fused_promotion:
            raise ValueError(f"{caller}: fused_promotion must be True with scales of blocks, got False")
        if isinstance(self.lse, TermwiseLogSumExp) and not has_scaled_maxima:
            raise ValueError(f"{caller}: lse must not be a TermwiseLogSumExp with {self.schedule}, got {self.lse!r}")
        if self.combine is not None and (
            self.combine.in_octaves != has_scaled_maxima or isinstance(self.lse, Base2LogSumExp)
        ):
            raise ValueError(
                f"{caller}: combine must be None or take log-sum-exps as of {self.lse}, got {self.combine!r}"
            )

    @property
    def is_determined(self) -> bool:
        """Whether the bits of 2^x and of 1/x are known."""
        return self.exp2.is_published and self.reciprocal.is_published

    @property
    def values_format(self) -> Format:
        """Format of V."""
        return self.operands if self.v_format is None else self.v_format

    @property
    def has_thread_scales(self) -> bool:
        """Whether Q and K have scales of threads."""
        return isinstance(self.scales, ThreadScales)

    @property
    def keeps_sums(self) -> bool:
        """Whether the output is divided by sums of 0 and NaN as by others."""
        return self.has_thread_scales or isinstance(self.schedule, TritonFused)

    @property
    def has_block_scales(self) -> bool:
        """Whether all operands, and P, have scales of blocks inside the instructions."""
        return isinstance(self.scales, BlockScales)

    def lse_in_nats(self, lse: Floats, q: Floats, k: Floats, scale: float) -> Floats:
        """Return the log-sum-exp of q and k, given what the kernel returns for the operands quantized from them."""
        return lse * self.lse.unit + self.scales.lse_offset(q, k, scale)

    def shared_scale(self, v_descale: Numbers) -> np.float32:
        """Return the factor of all outputs of a head: V's scale, or 1 if its channels have scales, by `p_scale`."""
        return np.float32(1 if v_descale.ndim else v_descale) * np.float32(1 / self.p_scale)

    @property
    def takes_descale(self) -> bool:
        """Whether the library's function takes scales of Q, K and V: only those with operands of 8 bits do."""
        return self.operands.bits <= 8

    def tile_of(self, call: Call) -> KeyTile:
        """Return the tile of a normalized call.

        Raises
        ------
        ValueError
            If the kernel does not support the head sizes.
        """
        found = self.schedule.tile(call, self.key_tiles)
        if found is None:
            sizes = [row.sizes for row in self.key_tiles]
            if not self.schedule.has_fixed_sizes:
                sizes = [
                    (d, dv) for d, dv in sizes if not any(a >= d and b >= dv for a, b in sizes if (a, b) != (d, dv))
                ]
            limit = "" if self.schedule.has_fixed_sizes else "at most "
            allowed = " or ".join(f"D = {d}, Dv = {dv}" for d, dv in sizes)
            raise ValueError(
                f"attention: head sizes must be {limit}{allowed} for {self}, got D = {call.head_dim}, "
                f"Dv = {call.value_dim}"
            )
        return found

    def gradient_tile_of(self, call: Call) -> GradientTile:
        """Return the tile of the backward pass of a call; raise the error of `tile_of` if there is none."""
        head_dim = max(call.head_dim, call.value_dim)
        for row in self.gradient_tiles:
            if head_dim <= row.head_dim:
                return row
        largest = self.gradient_tiles[-1].head_dim if self.gradient_tiles else 0
        raise ValueError(f"attention_grad: head_dim must be at most {largest} for {self}, got {head_dim}")

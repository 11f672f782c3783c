"""Numbers of rows at which the bits of a row change in a norm of the catalogue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._checks import brief_repr, check_choice, check_int
from ..order.arithmetic import bits
from ..order.invariance import Change, Invariance, check_sizes
from ..order.order import DTYPES, FormatName
from ..order.rules import MOST
from .norm import Norm

_SAMPLES = 64


def norm_invariance(
    norm: Norm, k: int, *, sizes: Sequence[int] = tuple(range(1, 65)), dtype: FormatName = "float32", seed: int = 0
) -> Invariance:  # fmt: skip
    """Find the numbers of rows at which the order of the sum of a row changes, and how many bits change with it.

    Parameters
    ----------
    norm : Norm
        Norm whose orders are compared, on 64 rows of normal data with weights of one.
    k : int
        Length of a row.
    sizes : sequence of int
        Numbers of rows M, in the order in which they are compared.
    dtype : {"float32", "bfloat16", "float16"}
        Dtype of the rows.
    seed : int
        Seed of the rows.

    Returns
    -------
    Invariance
        Every change of the order; its `share` is 0 if all outputs for these rows keep their bits.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the norm is not defined for rows of that length.
    TypeError
        If `norm` is not a `Norm`.

    Examples
    --------
    >>> import lowprec as lp
    >>> [change.m for change in norm_invariance(lp.norms["vllm_rms_norm"], 4096, sizes=(1, 255, 256, 300)).changes]
    [256]
    """
    caller = "norm_invariance"
    if not isinstance(norm, Norm):
        raise TypeError(
            f"{caller}: norm must be of class Norm, such as lp.norms['vllm_rms_norm'], got {brief_repr(norm)}"
        )
    k, seed = check_int(caller, "k", k, 1, MOST), check_int(caller, "seed", seed, 0)
    check_choice(caller, "dtype", dtype, norm.dtypes)
    ms, norm = check_sizes(caller, sizes, 1), norm.for_length(k)
    x = np.random.default_rng(seed).standard_normal((_SAMPLES, k)).astype(DTYPES[dtype])
    rules = [norm.order_for(m) for m in ms]
    outputs = {rule: np.asarray(norm.with_(order=rule, moments=norm.moments)(x), np.float64) for rule in {*rules}}
    changes = []
    for m, before, after in zip(ms[1:], rules, rules[1:], strict=False):
        if before(k) != after(k):  # outputs of 16 bits may round to the same bits in both orders
            differ = bits(outputs[before]) != bits(outputs[after])
            column = int(differ.any(axis=0).argmax())
            changes.append(Change(m, float(differ.mean()), column, before(k), after(k)))
    return Invariance(norm.name, ms, tuple(changes), x.size)

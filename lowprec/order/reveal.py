"""`reveal`: find the order of the additions of a callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._checks import check_int, check_positive
from .._fpenv import with_default_fpenv
from .arithmetic import SAMPLES, find_arithmetic
from .order import FormatName, Order
from .probed import Probed, check_callable, check_options
from .tree import TreeSearch

#: Time after which a search ends.
SECONDS = 60.0
#: Largest number of elements, and of samples.
MOST = 1 << 16


@with_default_fpenv
def reveal(
    function: Callable[..., Any], n: int, *, dtype: FormatName = "float32", operands: int = 1, samples: int = SAMPLES,
    seconds: float = SECONDS, seed: int = 0, progress: Callable[[int], object] | None = None,
) -> Order:  # fmt: skip
    """Find the order in which a callable adds n numbers.

    The result holds for this n, on this computer, with these versions and this number of threads. Formats of the sums
    and fused products are chosen so that the order gives the callable's bits on all samples.

    Parameters
    ----------
    function : callable
        Function of a vector of n numbers that returns their sum. Functions of torch, and those whose first
        parameter is annotated as ``torch.Tensor``, get tensors, all others arrays of NumPy.
    n : int
        Number of elements, from 1 to 65,536.
    dtype : {"float16", "bfloat16", "float32", "float64"}
        Dtype of the elements.
    operands : {1, 2}
        2: `function` takes two vectors and returns their dot product.
    samples : int
        Number of random inputs on which the order must give the callable's bits.
    seconds : float
        Time after which the search ends with an error.
    seed : int
        Seed of the search and the samples.
    progress : callable, optional
        Function that is called every second with the number of calls so far.

    Returns
    -------
    Order
        The order; its `validated_against` gives the number of samples with equal bits. Terms that are added in one
        operation of unknown rounding form a step of more than two terms; such an order is not compared with samples.
        `lowprec.identify` finds the arithmetic of such operations.

    Raises
    ------
    RevealError
        If no order gives the results, because the callable does not add, is random, or adds in an order that depends on
        the data; or if it raises, returns anything but one number, or takes too long. `evidence` holds the input.
    ValueError
        If a parameter is out of range.
    TypeError
        If `function` cannot be called.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> order = lp.reveal(np.sum, 20)
    >>> order == lp.orders["numpy_sum"](20)
    True
    >>> order.validated_against
    '0 of 200 sums of numpy.sum differ'
    """
    check_callable("reveal", function)
    n = check_int("reveal", "n", n, 1, MOST)
    samples = check_int("reveal", "samples", samples, 1, MOST)
    seconds = check_positive("reveal", "seconds", seconds)
    operands, seed = check_options("reveal", dtype, operands, seed)
    probed = Probed(function, n, dtype, operands, seconds, progress)
    tree = TreeSearch(probed, seed)
    steps = tree.find()
    assert probed.out_format is not None
    order = Order(probed.name, steps, dtype=dtype, out_format=probed.out_format)
    if not tree.is_exact and not order.is_binary:
        about = "nothing: terms that are added in one operation have an arithmetic of their own, see lowprec.identify"
        return order.with_(name=order.name, source=f"revealed by {probed.calls} calls", validated_against=about)
    found = find_arithmetic(probed, order, is_exact=tree.is_exact, count=samples, seed=seed)
    return found.with_(name=order.name, source=f"revealed by {probed.calls} calls")

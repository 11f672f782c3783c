"""Kernels of attention in the words of a recipe."""

from __future__ import annotations

from collections.abc import Mapping

from lowprec._checks import check_choice
from lowprec.attn.catalogue import attentions
from lowprec.attn.kernel import AttentionKernel
from lowprec.scaling.spec import Lookup

from .reduction import NONE

#: Words after the name of a kernel of attention: where its gradient comes from, as `AttentionKernel.plain_gradient`.
GRADIENTS = {"kernel_gradient": False, "plain_gradient": True}


def attention_of(
    given: AttentionKernel | str | None, names: Mapping[str, Lookup] | None = None
) -> AttentionKernel | None:
    """Return a kernel of attention, given by words or as an object; None for None and ``"none"``.

    Parameters
    ----------
    given : AttentionKernel, str or None
        Object, or name, such as ``"fa3_fp8"``; after a name, the word ``plain_gradient`` or ``kernel_gradient`` sets
        the kernel's field `plain_gradient`.
    names : mapping of str to Lookup, optional
        Mappings from names to objects by kind, by default the catalogue of kernels.

    Raises
    ------
    ValueError
        If another word follows the name; the message quotes it.
    UnknownNameError
        If the kernel is unknown.

    Examples
    --------
    >>> attention_of("fa3_fp8 plain_gradient").plain_gradient
    True
    """
    if given is None or given == NONE:
        return None
    if not isinstance(given, str):
        return attentions.get(given)
    name, *words = given.split(" ", 1)
    kernel = (attentions if names is None else names["attention"])[name]
    if not words:
        return kernel
    check_choice("attention", f"the word after {name!r}", words[0], tuple(GRADIENTS))
    return kernel.with_(plain_gradient=GRADIENTS[words[0]])

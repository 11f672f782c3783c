"""Results of `identify_attention`: kernels compared with outputs, and the sentence that sums them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...attn.catalogue import attentions
from ...attn.kernel import AttentionKernel
from ...format.catalogue import Format
from ..deadline import SECONDS
from ..words import join_all, join_some

Options = dict[str, Any]
_NAMED = 4


@dataclass(frozen=True)
class AttentionFit:
    """Comparison of a kernel with outputs.

    Attributes
    ----------
    kernel : AttentionKernel
        Kernel that was compared.
    outputs, lses : int
        Numbers of outputs and of log-sum-exps that were compared: those of the first key head, or of all heads if the
        kernel explains the first.
    differing, lse_differing : int
        Numbers of outputs and of log-sum-exps with other bits.
    wrong : int
        Number of differing ones that undocumented functions of the kernel cannot explain: outputs that are not
        undecided, see `lowprec.attention`, and log-sum-exps with larger errors than rounding.
    explains_first : bool
        Whether the kernel explains all outputs of the first key head, but not those of all heads.
    """

    kernel: AttentionKernel
    outputs: int
    lses: int
    differing: int
    lse_differing: int
    wrong: int
    explains_first: bool = False


@dataclass(frozen=True)
class AttentionIdentification:
    """Attention kernels that explain outputs.

    Attributes
    ----------
    options : dict
        Arguments of `lowprec.attention`, in addition to operands and kernel.
    ranking : tuple of AttentionFit
        Kernels, best first: the catalogue, and derived ones if no entry gives every bit.
    assumed : tuple of str
        Properties inferred from the outputs: layout, mask and format.
    skipped : tuple of str
        Kernels that do not take these operands or options, with the reason.
    untried : tuple of str
        Kernels that were not compared before the time limit.
    """

    options: Options
    ranking: tuple[AttentionFit, ...]
    assumed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    seconds: float = field(default=SECONDS, repr=False)

    @property
    def explaining(self) -> tuple[AttentionFit, ...]:
        """Kernels that explain every output and log-sum-exp; those that give the most bits first."""
        return tuple(fit for fit in self.ranking if not fit.wrong)

    @property
    def sentence(self) -> str:
        """Summary in one line: the kernels that explain the outputs, or the nearest one."""
        late = f"; the {self.seconds:g} s ended before all was tried" if self.untried else ""
        return (self._found() if self.explaining else self._not_found()) + late

    def _found(self) -> str:
        best, *others = self.explaining
        equal = [fit for fit in others if (fit.differing, fit.lse_differing) == (best.differing, best.lse_differing)]
        verb = "fit equally and reproduce" if equal else "reproduces"
        found = f"{_names([best, *equal])} {verb} all {best.outputs} outputs"
        if best.differing:
            exact = best.outputs - best.differing
            found += f", {exact} bit for bit and the others within the documented errors of 2**x and 1/x"
        found += f"; {best.lses - best.lse_differing} of {best.lses} log-sum-exps are equal" if best.lses else ""
        if more := [fit for fit in others if fit not in equal]:
            found += f"; {_names(more)} explain them, too, with fewer equal bits"
        return found

    def _not_found(self) -> str:
        if not self.ranking:
            return "no kernel was compared"
        best = self.ranking[0]
        lses = f" and {best.lses - best.lse_differing} of {best.lses} log-sum-exps" if best.lses else ""
        first = "; it explains the first key head, not all heads" if best.explains_first else ""
        return (
            f"no kernel reproduces the {best.outputs} outputs; nearest is {best.kernel}, which gives "
            f"{best.outputs - best.differing}{lses}{first}"
        )

    def lines(self) -> tuple[str, ...]:
        """Return each kernel that explains the outputs as a line of Python, without the operands."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return tuple(f"lp.attention(q, k, v, kernel={_as_python(fit.kernel)}{options})" for fit in self.explaining)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str | int, ...]]]:
        """Return `ranking` as a table: its columns and rows."""
        rows: list[tuple[str | int, ...]] = [
            (str(fit.kernel), fit.differing, fit.lse_differing, fit.wrong) for fit in self.ranking
        ]
        return ("kernel", "outputs that differ", "log-sum-exps", "not explained"), rows

    def __repr__(self) -> str:
        """Return the sentence and the first lines of Python."""
        return "\n".join((f"AttentionIdentification: {self.sentence}", *(f"  {line}" for line in self.lines()[:4])))


def _names(fits: Sequence[AttentionFit]) -> str:
    names = [str(fit.kernel) for fit in fits]
    return join_all(names) if len(names) <= _NAMED else join_some(names)


def _as_python(kernel: AttentionKernel) -> str:
    """Return an entry by its name, a derived kernel as a call of `with_`."""
    if kernel.name in attentions:
        return repr(kernel.name)
    base = attentions[kernel.name.partition("(")[0]]
    changed = {
        name: getattr(kernel, name) for name in AttentionKernel.__dataclass_fields__
        if name not in ("name", "source", "decided") and getattr(kernel, name) != getattr(base, name)
    }  # fmt: skip
    fields = ", ".join(
        f"{name}={value.name if isinstance(value, Format) else value!r}" for name, value in changed.items()
    )
    return f"lp.attentions[{base.name!r}].with_({fields})"

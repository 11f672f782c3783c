"""Differences of log-probabilities to expect between a trainer and a rollout, from a small trained model."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .. import _jit
from .._checks import check_positive
from .._fpenv import with_default_fpenv
from ..cast.casts import round_to
from ..definitions.code import code_hash
from ..format.catalogue import formats
from ..format.format import Format
from ..moe.data.corpus import held_out_windows
from ..moe.data.sources import load_corpus
from ..moe.model.config import configs
from ..moe.model.config_file import check_tiles
from ..moe.model.layers import RMSNorm
from ..moe.model.model import Model
from ..moe.run.checkpoint import CheckpointError
from ..moe.run.schedule import Schedule
from ..moe.run.trainer import Trainer
from ..norm.norm import Norm
from ..order.order import DTYPES
from ..recipe import Recipe
from .mismatch import Floats, Mismatch, PartContribution, contribution
from .side import PARTS, Side, explicit, mixed, with_other_order

Progress = Callable[[int, int], None]
TOKENS = 4096
_STEPS, _BATCH, _LEARNING_RATE = 400, 4, 4e-3
#: Changes of the rollout that are tried one by one if a measured difference is larger than expected.
_TRIED = {
    "kv": "fp8_1x128", "attention": "fa3_fp8", "combine": "fp8_1x128", "head": "bfloat16", "log_softmax": "bfloat16",
}  # fmt: skip
_FACTOR = 2.0


class Grid(NamedTuple):
    """Spacing of the logits of one side: their format, the size of the largest one (median), and the step there."""

    logits: Format
    size: float
    step: float


@dataclass(frozen=True)
class Expectation(Mismatch):
    """Result of `expect`: a `Mismatch` of two sides in a small trained model.

    Attributes
    ----------
    model : str
        Description of the model and the tokens.
    probability : ndarray of float64, shape (tokens,)
        Probability of the observed tokens in the trainer.
    grids : tuple of Grid
        Spacing of logits in the trainer and in the rollout.
    measured : float or None
        Mean absolute difference of log-probabilities that was measured elsewhere.
    candidates : tuple of (str, float)
        Mean absolute difference with one more change of the rollout each, if the measured one is larger than expected.
    """

    model: str
    probability: Floats = dataclasses.field(repr=False)
    grids: tuple[Grid, Grid]
    measured: float | None = None
    candidates: tuple[tuple[str, float], ...] = ()

    @property
    def verdict(self) -> str:
        """Comparison of the measured difference with the expected one, in words; empty without a measured one."""
        if self.measured is None:
            return ""
        if not self.difference:
            return "these sides make no difference here: yours has another cause; find it with lowprec diverge"
        ratio = self.measured / self.difference
        text = f"yours ({self.measured:.3g}) is {ratio:.3g}x the expected difference"
        if ratio > _FACTOR:
            found = [f"{name} ({mean / self.difference:.3g}x)" for name, mean in self.candidates]
            low, high = self.measured / _FACTOR, self.measured * _FACTOR
            near = [name for name, mean in self.candidates if low <= mean <= high]
            tried = f"; one more change of the rollout gives: {', '.join(found)}" if found else ""
            where = f"look at {' or '.join(near)}" if near else (
                "none comes near yours: look at weights, tokens, positions and temperature of both sides first "
                "(lowprec diverge)"
            )  # fmt: skip
            return f"{text}{tried}; {where}"
        if ratio < 1 / _FACTOR:
            return f"{text}: compare the probabilities of your tokens with the table; likely tokens differ less"
        names, rest = [], self.mean / 2
        for part in sorted(self.parts, key=_largest, reverse=True):
            if rest > 0:
                names.append(part.name)
                rest -= _largest(part)
        most = "" if rest > 0 else f"; most comes from {' and '.join(names)}"
        return f"{text}, as these sides make it{most}"

    def by_probability(self) -> list[tuple[str, int, float]]:
        """Return the number of tokens and the mean absolute difference for ranges of the trainer's probability."""
        edges, rows = (0, 0.01, 0.1, 0.5, 0.9, 1), []
        for low, high in itertools.pairwise(edges):
            mine = (self.probability >= low) & ((self.probability < high) | (high == 1))
            mean = float(np.abs(self.log_ratio[mine]).mean()) if mine.any() else np.nan
            rows.append((f"{low:g} to {high:g}", int(mine.sum()), mean))
        return rows

    def __str__(self) -> str:
        lines = [super().__str__(), "", f"model         {self.model}"]
        for side, grid in zip(("trainer", "rollout"), self.grids, strict=True):
            where = f"logits in {grid.logits}; of the size of the largest, {grid.size:.3g}"
            lines.append(f"{side:13s} {where}, they step by {grid.step:.3g}")
        lines += ["", f"{'probability of the token':32s} {'tokens':>7s} {'difference':>11s}"]
        lines += [f"{name:32s} {count:7d} {mean:11.2e}" for name, count, mean in self.by_probability()]
        return "\n".join([*lines, *(["", self.verdict] if self.verdict else [])])


def _largest(part: PartContribution) -> float:
    """Return the larger of a part's two contributions, at least 0."""
    return float(np.nanmax((part.kl_alone, part.kl_reduction, 0.0)))


def trained_miniature(seed: int = 0, progress: Progress | None = None) -> Trainer:
    """Return the default model of `expect`: ``nano``, trained on the standard library, kept in the cache folder."""
    config = dataclasses.replace(configs["nano"], batch=_BATCH)
    corpus = load_corpus("stdlib")
    folder = _jit.cache_folder
    file = None if folder is None else Path(folder) / f"miniature_{code_hash()[:12]}_{corpus.sha256[:12]}_{seed}.npz"
    if file is not None and file.exists():
        with contextlib.suppress(CheckpointError):  # a file that was cut is trained again
            return Trainer.load(file, data=corpus)
    trainer = Trainer(config, "bf16", corpus, seed=seed, schedule=Schedule(_LEARNING_RATE, _STEPS // 10, _STEPS))
    for step in range(_STEPS):
        trainer.step()
        if progress is not None:
            progress(step + 1, _STEPS)
    if file is not None:
        with contextlib.suppress(CheckpointError):  # the folder may be full, or gone
            trainer.save(file)
    return trainer


@with_default_fpenv
def expect(
    train: str | Recipe | Side,
    rollout: str | Recipe | Side,
    *,
    trainer: Trainer | None = None,
    tokens: NDArray[np.uint8] | None = None,
    logit_size: float | None = None,
    measured: float | None = None,
    contributions: bool = True,
    progress: Progress | None = None,
) -> Expectation:
    """Compute the differences of log-probabilities to expect between a trainer and a rollout.

    Both run in a small trained model with equal weights and tokens, where every difference comes from arithmetic. Then
    each part in which they differ is changed alone, and left out.

    Parameters
    ----------
    train, rollout : str, Recipe or Side
        Arithmetic of both sides.
    trainer : Trainer, optional
        Trained model; by default that of `trained_miniature`.
    tokens : uint8 array [windows, sequence + 1], optional
        Text to predict; by default held-out text of the trainer's corpus.
    logit_size : float, optional
        Size of the largest logits. All logits are moved by one number, which changes no probability except through the
        format of logits, whose step grows with their size; by default they are not moved.
    measured : float, optional
        Mean absolute difference that was measured elsewhere, for `Expectation.verdict`.
    contributions : bool
        Whether to compute the contribution of each part, two passes each.
    progress : callable, optional
        Called with the number of finished passes and that of all planned passes.

    Returns
    -------
    Expectation

    Raises
    ------
    ValueError
        If a recipe stores float64 or uses delayed scaling, whose scales depend on earlier steps; if logits or their
        log-probabilities are not finite in their format, or all logits are equal in it at `logit_size`; if a norm is
        no RMSNorm.

    Notes
    -----
    The model is small: depth, width, vocabulary, outliers and tokens of a large model are not in it. Compare numbers
    within a factor, not by their digits.

    Examples
    --------
    >>> from lowprec.moe.data.synthetic import synthetic
    >>> trainer = Trainer("nano", "bf16", synthetic(0), seed=0, schedule=Schedule(1e-3, 0, 9))
    >>> found = expect("bf16", "dsv3", trainer=trainer, tokens=trainer.corpus.held_out[None, :129])
    >>> found.kl.shape, [part.name for part in found.parts]
    ((128,), ['operands (formats, scales)', 'accumulator', 'dispatch, combine'])
    """
    logit_size = None if logit_size is None else check_positive("expect", "logit_size", logit_size)
    measured = None if measured is None else check_positive("expect", "measured", measured)
    sides = [side if isinstance(side, Side) else Side.of(side) for side in (train, rollout)]
    for side in sides:
        if side.recipe.activations == "float64":
            raise ValueError(f"expect: recipe must store bfloat16 or float32, got {side.name}")
        if side.recipe.uses_delayed_scaling:
            raise ValueError(f"expect: recipe must not use delayed scaling, as scales have a history, got {side.name}")
    trainer = trained_miniature(progress=progress) if trainer is None else trainer
    model, config = trainer.model, trainer.config
    if tokens is None:
        tokens = held_out_windows(trainer.corpus, config.sequence, TOKENS)
    elif np.ndim(tokens) != 2 or not len(tokens):
        raise ValueError(f"expect: tokens must have shape [windows >= 1, sequence + 1 >= 2], got {np.shape(tokens)}")
    for side in sides:
        check_tiles(config, side.recipe)
        if side.norm is not None:
            _check_norm(side.norm, config.dim)
    a, b = (explicit(side, config) for side in sides)
    passes = Passes(model, tokens, progress)
    variants = {part: (mixed(a, b, part), mixed(b, a, part)) for part in PARTS} if contributions else {}
    variants = {part: pair for part, pair in variants.items() if pair != (a, b)}
    other = with_other_order(a)
    passes.total = 2 + sum(side is not None for pair in (*variants.values(), (other,)) for side in pair)
    logits = passes.logits(a)
    size = float(np.median(logits.max(1)))
    if logit_size is not None:
        passes.shift = logit_size - size
        _check_steps(logit_size, float(np.median(logits.std(1))), (a.logits, b.logits, formats["float32"]))
    logits_of_b = passes.logits(b)
    p, q = passes.log_probabilities(a, logits), passes.log_probabilities(b, logits_of_b)
    likeliest, other_likeliest = passes.rounded(a, logits).argmax(1), passes.rounded(b, logits_of_b).argmax(1)
    at = np.arange(len(p)), tokens[:, 1:].reshape(-1)
    ratio, changes = q[at] - p[at], dict[str, Side]()
    if measured is not None and measured > _FACTOR * np.abs(ratio).mean() > 0:
        changes = {f"{key}={value}": explicit(_changed(sides[1], key, value), config) for key, value in _TRIED.items()}
        changes = {name: change for name, change in changes.items() if change != b}
        passes.total += len(changes)
    kl = divergence(p, q)
    parts = []
    for part, pair in variants.items():
        alone, spared = (None if side is None else divergence(p, passes(side)) for side in pair)
        parts.append(contribution(part, kl, alone, spared))
    floor = np.nan if other is None else float(divergence(p, passes(other)).mean())
    tried = [(name, float(np.abs(passes(change)[at] - p[at]).mean())) for name, change in changes.items()]
    about = f"{config.name}, {config.layers} blocks of width {config.dim}, after {trainer.steps} steps of training"
    grids = tuple(
        Grid(side.logits, size + passes.shift, float(side.logits.ulp(size + passes.shift))) for side in (a, b)
    )
    return Expectation(
        sides[0].name, sides[1].name, kl, ratio, float((other_likeliest != likeliest).mean()), floor, "part",
        tuple(parts), len(tokens), about, np.exp(p[at]), grids, measured, tuple(tried),  # type: ignore[arg-type]
    )  # fmt: skip


def _check_norm(norm: Norm, width: int) -> None:
    """Raise ValueError unless a norm computes RMSNorm, up to rounding."""
    given = np.random.default_rng(0).uniform(0.5, 2, (2, width)).astype(DTYPES[norm.dtypes[0]])
    x, gain = given.astype(np.float64)
    if not np.allclose(norm(*given, eps=0).astype(np.float64), x * gain / np.sqrt(np.square(x).mean()), rtol=0.03):
        raise ValueError(f"expect: norm must be an RMSNorm, got {norm.name}")


def _check_steps(size: float, spread: float, kinds: tuple[Format, ...]) -> None:
    """Raise ValueError if a format's step at the size of the logits is larger than their standard deviation."""
    for fmt in kinds:
        if (step := float(fmt.ulp(size))) > spread:
            raise ValueError(
                f"expect: logit_size must be where {fmt} steps by at most {spread:.3g}, the standard deviation of the "
                f"logits, got {size:g}, where it steps by {step:.3g}"
            )


def _changed(side: Side, key: str, value: str) -> Side:
    new = Side.of(side.recipe, **{key: value})
    return dataclasses.replace(new, norm=side.norm, log_softmax=new.log_softmax or side.log_softmax)


def divergence(p: Floats, q: Floats) -> Floats:
    """Return KL(p || q) of each token, given log-probabilities [tokens, vocabulary].

    Probabilities whose logarithms were rounded have other sums than 1; their difference is added, so that the result
    is 0 for equal p and q, and positive otherwise.
    """
    found: Floats = (np.exp(p) * (p - q) - np.exp(p) + np.exp(q)).sum(1)
    return found


class Passes:
    """Forward passes of a model with several sides, whose logits are moved by `shift` before they are rounded."""

    def __init__(self, model: Model, tokens: NDArray[np.uint8], progress: Progress | None) -> None:
        self.model, self.tokens, self.progress = model, tokens, progress
        self.done = self.total = 0
        self.shift = 0.0

    def __call__(self, side: Side) -> Floats:
        """Return log p of every next token, in float64 [tokens, vocabulary]."""
        return self.log_probabilities(side, self.logits(side))

    def logits(self, side: Side) -> NDArray[np.float32]:
        """Return the logits [tokens, vocabulary], before they are moved and rounded."""
        recipe = side.recipe.with_(layers={"head": {"out_format": "float32"}})
        bound = recipe.bind(self.model.rounding_seed, self.model.config.layers)
        model = self.model.with_bound(bound)
        if side.norm is not None:
            _use_norm(model, side.norm, recipe.activations)
        step = self.model.config.batch
        with bound.evaluating():
            found = [model.predictions(self.tokens[i : i + step])[0] for i in range(0, len(self.tokens), step)]
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)
        out: NDArray[np.float32] = np.concatenate(found)
        return out.reshape(-1, out.shape[-1])

    def log_probabilities(self, side: Side, logits: NDArray[np.float32]) -> Floats:
        """Return log p, given logits before they are moved and rounded."""
        rounded = self.rounded(side, logits)
        largest = rounded.max(1, keepdims=True)
        total: Floats = largest + np.log(np.exp(rounded - largest).sum(1, keepdims=True))
        if side.log_softmax is None:
            out: Floats = rounded - total
            return out
        low = rounded - round_to(total, side.log_softmax)
        return _finite("log-probabilities", np.asarray(round_to(low, side.log_softmax), np.float64), side.log_softmax)

    def rounded(self, side: Side, logits: NDArray[np.float32]) -> Floats:
        """Return moved and rounded logits, given those before."""
        moved = round_to(logits + np.float32(self.shift), side.logits)
        return _finite("logits", moved.astype(np.float64), side.logits)


def _finite(name: str, x: Floats, fmt: Format) -> Floats:
    if not np.isfinite(x).all():
        raise ValueError(f"expect: {name} must be finite in {fmt}, got infinite ones or NaN")
    return x


class _Formulas(RMSNorm):
    """An RMSNorm of the model, computed by other formulas."""

    def __init__(self, norm: RMSNorm, formulas: Norm, dtype: str) -> None:
        self.__dict__.update(norm.__dict__)
        self.formulas, self.dtype = formulas, np.dtype(getattr(ml_dtypes, dtype, dtype))

    def forward(self, params: Any, x: Any) -> tuple[Any, Any]:
        """Map x [T, C] to y [T, C]; nothing is saved for a backward pass."""
        y = self.formulas(x.astype(self.dtype), params[self.name].astype(self.dtype), eps=self.eps)
        return self.store_output(y.astype(np.float32)), None


def _use_norm(model: Model, norm: Norm, dtype: str) -> None:
    """Replace every RMSNorm of a model."""
    for owner in (model, *(part for block in model._blocks for part in (block, block.attn))):
        for name, found in list(vars(owner).items()):
            if isinstance(found, RMSNorm):
                setattr(owner, name, _Formulas(found, norm, dtype))

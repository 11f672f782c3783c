"""What one step of training gives: its record, or that it diverged."""

from __future__ import annotations

from dataclasses import dataclass, field


class Diverged(ArithmeticError):
    """A loss, a gradient or a weight that is NaN or infinite; the trainer stays as it was before that step.

    It means the same in every recipe: casts that saturate infinities keep the loss finite, and the weight is not.
    """


@dataclass(frozen=True)
class StepRecord:
    """What one optimizer step did.

    Attributes
    ----------
    step : int
        Steps done, this one included.
    loss : float
        Cross-entropy of the step's bytes before the update, nats per byte.
    grad_norm : float
        Norm of the gradient before clipping.
    learning_rate : float
        The rate of the update.
    tokens : int
        Bytes predicted since the first step.
    max_violation : float
        How much the busiest expert exceeds the mean, max(load) / mean(load) - 1, over all layers.
    balance_loss : float
        The sequence-wise balance loss, which is in the gradient and not in `loss`.
    mtp_loss : float
        Cross-entropy of predicting a byte further, weighted in the gradient and not in `loss`; 0 without that module.
    nonfinite_operands : int
        How many inputs and output gradients of linear layers held NaN or infinity. A step that quantizes by casts that
        saturate may go on with them.
    seconds : float
        Wall time; not compared.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    max_violation: float
    balance_loss: float
    mtp_loss: float
    nonfinite_operands: int
    seconds: float = field(compare=False)

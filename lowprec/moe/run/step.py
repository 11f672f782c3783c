"""Result of one training step: its record, or the error that reports divergence."""

from __future__ import annotations

from dataclasses import dataclass, field


class Diverged(ArithmeticError):
    """Error for a loss, gradient or weight that is NaN or infinite; the trainer keeps its state before that step.

    All recipes use the same criterion: casts that saturate infinities can keep the loss finite, but not the weight.
    """


@dataclass(frozen=True)
class StepRecord:
    """Record of one optimizer step.

    Attributes
    ----------
    step : int
        Number of steps, this one included.
    loss : float
        Cross-entropy of the step's bytes before the update, nats per byte.
    grad_norm : float
        Norm of the gradient before clipping.
    learning_rate : float
        Learning rate of the update.
    tokens : int
        Number of bytes predicted since the first step.
    max_violation : float
        Relative excess of the largest load of an expert, max(load) / mean(load) - 1, maximum over layers.
    balance_loss : float
        Sequence-wise balance loss, which is part of the gradient and not of `loss`.
    mtp_loss : float
        Multi-token prediction loss, part of the gradient with its weight and not of `loss`; 0 without the module.
    nonfinite_operands : int
        Number of inputs and output gradients of linear layers that held NaN or infinity. Casts that saturate may hide
        them from the loss.
    seconds : float
        Wall time; not part of comparisons.
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

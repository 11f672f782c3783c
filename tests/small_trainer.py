"""The real trainer with a validation that takes no time, for tests in worker processes."""

from dataclasses import dataclass

from lowprec.moe.run.trainer import Trainer
from lowprec.study.run.backend import Backend


class SmallTrainer(Trainer):
    def evaluate(self):
        return super().evaluate(n_bytes=2048)

    def window_losses(self, recipe=None, *, n_bytes, **rest):
        return super().window_losses(recipe, n_bytes=min(n_bytes, 2048), **rest)


@dataclass(frozen=True)
class SmallBackend(Backend):
    @property
    def trainer(self):
        return SmallTrainer


SMALL = SmallBackend()

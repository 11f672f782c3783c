"""The real trainer with a validation that takes no time, for tests in worker processes."""

from dataclasses import dataclass

from lowprec.moe.run.trainer import Trainer
from lowprec.study.run.backend import MoEBackend


class SmallTrainer(Trainer):
    def evaluate(self, recipe=None):
        return super().evaluate(recipe, n_bytes=2048)


@dataclass(frozen=True)
class SmallBackend(MoEBackend):
    @property
    def trainer(self):
        return SmallTrainer


SMALL = SmallBackend()

"""A trainer in milliseconds: noisy losses that depend on what a real trainer's would, for tests of the study alone."""

import hashlib
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

#: Relative damage of each recipe to the final loss; "explodes" diverges.
DAMAGE = {
    "bf16": 0.0, "dsv3": 0.0004, "dsv3_no_promotion": 0.0005, "dsv3_tensor_no_promotion": 0.0005, "fp4_naive": 0.02,
    "explodes": 0.0, "crashes": 0.0,
}  # fmt: skip


#: Held-out windows.
WINDOWS = 64


class Diverged(ArithmeticError):
    pass


@dataclass(frozen=True)
class Schedule:
    peak_lr: float
    warmup_steps: int
    total_steps: int
    curve: str = "constant"


@dataclass(frozen=True)
class StepRecord:
    step: int
    loss: float
    learning_rate: float
    tokens: int
    seconds: float
    max_violation: float = 0.5


def noise(*key):
    """A number in [-1, 1) that depends on the key only."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8]) / 2**63 - 1


_passed: dict[str, int] = {}  # by gate, how many runs of this process came to it


def pass_gate(path):
    """Wait until a file, if it is there at all, has as many lines as runs of this process have come here."""
    _passed[path] = _passed.get(path, 0) + 1
    limit = time.monotonic() + 300
    while Path(path).exists() and Path(path).read_text().count("\n") < _passed[path] and time.monotonic() < limit:
        time.sleep(0.005)


class Trainer:
    def __init__(self, config, recipe, corpus, *, seed, schedule, data_seed=None):
        self.config, self.recipe, self.schedule = config, recipe, schedule
        self.seed, self.data_seed, self.nudge, self.position = seed, seed if data_seed is None else data_seed, 0.0, 0
        self.branched_at = 0

    def step(self):
        time.sleep(float(os.environ.get("FAKE_STEP_SECONDS", "0")))
        in_branch = self.position - self.branched_at
        if "FAKE_GATE" in os.environ and in_branch == 5:
            pass_gate(os.environ["FAKE_GATE"])
        if self.recipe == "explodes" and in_branch >= 5:
            raise Diverged(f"step {self.position}: loss is nan")
        if self.recipe == "crashes" and in_branch >= 2:
            raise RuntimeError("out of cheese")
        loss = self._level() + 0.15 * noise("batch", self.data_seed, self.position)
        loss += 0.002 * noise("chaos", self.recipe, self.nudge, self.data_seed, self.position)
        self.position += 1
        if os.environ.get("FAKE_IRREPRODUCIBLE"):
            loss += 1e-9 * noise(time.perf_counter_ns())
        return StepRecord(
            self.position, loss, self.schedule.peak_lr, 2048 * self.position, time.perf_counter(), self._violation()
        )

    def _violation(self):
        balanced = isinstance(self.config, str) or self.config.get("bias_update_speed", 0.003) > 0
        return 0.5 if balanced else 0.5 + 0.1 * self.position

    def _level(self, damage=None):
        level = 1.6 + 3.9 * math.exp(-self.position / 60) + 0.02 * noise("weights", self.seed)
        share = min(1.0, (self.position - self.branched_at) / 10)
        return level * (1 + (DAMAGE[self.recipe] * share if damage is None else damage))

    def evaluate(self):
        return sum(self.window_losses()) / WINDOWS

    def window_losses(self, recipe=None, *, n_bytes=65_536, seed=None, calibration=0):
        """Half of a recipe's damage is in its forward pass, half in the weights."""
        chaos = 0.0005 * noise("end", self.recipe, self.nudge, self.data_seed, self.seed)
        read = DAMAGE[self.recipe if recipe is None else recipe]
        share = min(1.0, (self.position - self.branched_at) / 10)
        level = self._level(0.5 * DAMAGE[self.recipe] * share + 0.5 * read) * (1 + chaos)
        return [
            level * (1 + 0.2 * noise("window", i) + 0.001 * noise("reading", read, i) * bool(read))
            for i in range(WINDOWS)
        ]

    def perturb(self):
        self.nudge = 2.0**-7

    def save(self, path):
        state = vars(self) | {"schedule": vars(self.schedule)}
        text = json.dumps(state)
        temporary = Path(f"{path}.tmp")
        temporary.write_text(json.dumps({"state": state, "sha": hashlib.sha256(text.encode()).hexdigest()}))
        temporary.replace(path)

    @classmethod
    def load(cls, path, recipe=None, schedule=None, data_seed=None, data=None):
        content = json.loads(Path(path).read_text())
        if hashlib.sha256(json.dumps(content["state"]).encode()).hexdigest() != content["sha"]:
            raise ValueError(f"{path} is damaged")
        state = content["state"]
        schedule = schedule or Schedule(**state["schedule"])
        trainer = cls(state["config"], recipe or state["recipe"], data, seed=state["seed"], schedule=schedule)
        trainer.data_seed = state["data_seed"] if data_seed is None else data_seed
        trainer.nudge, trainer.position = state["nudge"], state["position"]
        trainer.branched_at = state["branched_at"] if recipe is None else state["position"]
        return trainer


@dataclass(frozen=True)
class FakeBackend:
    """What `lowprec.study.run.backend.Backend` asks for."""

    name = "fake_trainer"
    diverged = Diverged
    trainer = Trainer

    def load_corpus(self, source):
        if source == "missing":
            raise ValueError("corpus 'missing': no such file; give 'stdlib' or the path of a text file")
        return SimpleNamespace(sha256=hashlib.sha256(source.encode()).hexdigest())

    def configuration(self, config, changes):
        return {"name": config, **changes}

    def describe(self, config, recipe):
        changes = {} if isinstance(config, str) else config
        config = config if isinstance(config, str) else config["name"]
        if recipe not in DAMAGE:
            raise ValueError(f"unknown recipe {recipe!r}")
        if config not in ("nano", "pilot"):
            raise ValueError(f"unknown model configuration {config!r}")
        # Only the parent describes: workers of these tests start without the real package.
        from lowprec.moe.model.config import configs
        from lowprec.recipe import recipes

        return {
            "config": {**asdict(configs[config]), "batch": 16, "sequence": 128, "bias_update_speed": 0.003, **changes},
            "recipe": recipes[recipe].as_dict() if recipe in recipes else {"name": recipe},
            "parameters": {"total": 1_433_216, "active": 843_392},
        }

    def forward(self, recipe):
        from lowprec.study.run.backend import Forward

        return Forward(str(recipe), recipe)

    def new(self, config, recipe, corpus, *, seed, schedule, data_seed=None):
        return self.trainer(config, recipe, corpus, seed=seed, schedule=Schedule(**schedule), data_seed=data_seed)

    def load(self, path, corpus, *, recipe=None, schedule=None, data_seed=None):
        rates = None if schedule is None else Schedule(**schedule)
        return self.trainer.load(path, recipe=recipe, schedule=rates, data_seed=data_seed, data=corpus)

    def weights_hash(self, trainer):
        return hashlib.sha256(repr((trainer.nudge, trainer.position, trainer.data_seed)).encode()).hexdigest()


FAKE = FakeBackend()

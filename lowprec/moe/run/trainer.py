"""Training one step at a time: resumable at every step, with the same bits for the same seeds.

A trainer's state is its weights, the optimizer's moments, the routing biases, the scales of delayed scaling and two
numbers, the step and the data seed: the windows of a step and all its random bits depend only on those two and the
run's seed (`lowprec.moe.data.corpus`, `lowprec.recipe`), so no generator has state. Saving and loading is therefore
exact, and a branch is a load with another recipe, schedule or data seed.
"""

from __future__ import annotations

import copy
import math
import os
import time

import numpy as np
import numpy.typing as npt

from lowprec._fpenv import with_default_fpenv
from lowprec.moe.data.corpus import Corpus, batches, held_out_entropy, held_out_windows
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.config_file import get_config
from lowprec.moe.model.memory import SAVE_ALL, RecomputePolicy
from lowprec.moe.model.model import Model
from lowprec.moe.model.routing import update_bias
from lowprec.moe.run import saving
from lowprec.moe.run.ema import ParameterEMA
from lowprec.moe.run.optim import AdamW
from lowprec.moe.run.parallel import gradient_backend
from lowprec.moe.run.schedule import Schedule
from lowprec.moe.run.step import Diverged, StepRecord
from lowprec.recipe import Recipe, load_recipe, rounding_seed

#: Number of bytes that `Trainer.evaluate` predicts: the same windows for every recipe.
EVALUATION_BYTES = 65_536


class Trainer:
    """A model, its optimizer and its data.

    Parameters
    ----------
    config : MoEConfig, str or path
        Shape of the model, or the path of a TOML file.
    recipe : Recipe or str
        Precision of the training, or the path of a TOML file.
    data : Corpus
        Text for training and evaluation.
    seed : int
        Seed of initial weights, random bits and, unless `data_seed` is given, the order of the data.
    schedule : Schedule
        Learning rate; its step 0 is the first step of this trainer, or of this branch.
    data_seed : int, optional
        Seed of the order of the data. If it differs from `seed`, it affects the random bits too, see
        `lowprec.recipe.rounding_seed`.
    ema : float, optional
        Decay of an exponential moving average of the weights, for `evaluate`; none by default.
    recompute : RecomputePolicy or str
        Activations that the backward pass recomputes; results do not change.

    Attributes
    ----------
    model, optimizer : Model, AdamW
        Model, with its weights, biases and bound recipe, and optimizer, with the moments.
    steps : int
        Number of steps made.

    Examples
    --------
    >>> from lowprec.moe.data.sources import load_corpus
    >>> schedule = Schedule(peak_lr=4e-3, warmup_steps=10, total_steps=100)
    >>> trainer = Trainer("nano", "bf16", load_corpus("stdlib"), seed=0, schedule=schedule)
    >>> record = trainer.step()
    >>> record.step, record.tokens, 5.4 < record.loss < 5.8
    (1, 2048, True)
    """

    @with_default_fpenv
    def __init__(
        self,
        config: MoEConfig | str | os.PathLike[str],
        recipe: Recipe | str,
        data: Corpus,
        *,
        seed: int,
        schedule: Schedule,
        data_seed: int | None = None,
        ema: float | None = None,
        recompute: RecomputePolicy | str = SAVE_ALL,
    ) -> None:
        self.config = get_config(config)
        self.recipe = load_recipe(recipe)
        self.corpus = data
        self.seed = seed
        self.data_seed = seed if data_seed is None else data_seed
        self.schedule = schedule
        self.steps = 0
        self.schedule_start = 0
        self._ranks = gradient_backend(self.recipe.all_reduce, self.config.batch)
        self._batches = batches(data, self.data_seed, self.config.batch, self.config.sequence)
        self.model = Model(self.config, self.recipe, seed, recompute, rounding_seed(seed, self.data_seed))
        if self.recipe.moment_m == "float64":  # then the master weights are float64 too
            self.model.params.update({name: w.astype(np.float64) for name, w in self.model.params.items()})
        self.optimizer = AdamW(
            self.model.params,
            moment_m=self.recipe.moment_m,
            moment_v=self.recipe.moment_v,
            master=self.recipe.master_weights,
        )
        self.ema = None if ema is None else ParameterEMA(self.model.params, ema)

    @with_default_fpenv
    def step(self) -> StepRecord:
        """Make one optimizer step.

        Returns
        -------
        StepRecord
            Record of the step.

        Raises
        ------
        Diverged
            If the loss, the gradient or a weight is NaN or infinite. The state is then unchanged, except as in
            `AdamW.update`.
        """
        begin = time.perf_counter()
        here = self.steps - self.schedule_start
        rate = self.schedule.rate(here)
        self.model.mtp_weight = self.config.mtp_weight * self.schedule.mtp_weight_factor(here)
        before = self.model.recipe.state_dict()
        try:
            self.model.recipe.begin_step(self.steps)
            loss, gradients = self._ranks.loss_and_grads(self.model, self._batches[self.steps])
            loss = float(loss)
            if not math.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss}")
            norm = self.optimizer.update(gradients, rate)
        except FloatingPointError as error:
            self.model.recipe.load_state_dict(before)
            raise Diverged(f"step {self.steps + 1}: {error}{self._where()}") from None
        bias_update_speed = self.config.bias_update_speed * self.schedule.bias_update_factor(here)
        for gate, bias in self.model.biases.items():
            update_bias(bias, self.model.loads[gate], bias_update_speed)
        if self.ema is not None:
            self.ema.update(self.model.params)
        self.steps += 1
        return StepRecord(
            step=self.steps,
            loss=loss,
            grad_norm=norm,
            learning_rate=rate,
            tokens=self.steps * self.config.batch * self.config.sequence,
            max_violation=float(self.model.max_violation),
            balance_loss=float(self.model.balance_loss),
            mtp_loss=float(self.model.mtp_loss),
            nonfinite_operands=len(self.model.recipe.nonfinite),
            seconds=time.perf_counter() - begin,
        )

    def _where(self) -> str:
        """Return the location of NaN or infinity in the step, weights before operands, for the end of a message."""
        names = [*self.optimizer.nonfinite(), *sorted(self.model.recipe.nonfinite)]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"; NaN or infinity in {', '.join(names[:3])}{more}" if names else ""

    @with_default_fpenv
    def evaluate(
        self, recipe: Recipe | str | None = None, *, n_bytes: int = EVALUATION_BYTES, mean_weights: bool = False
    ) -> float:
        """Return the mean loss on the fixed held-out windows, without changing any state.

        Parameters
        ----------
        recipe : Recipe or str, optional
            Recipe of the forward pass, by default the trainer's; "bf16" for the quality of the weights alone.
        n_bytes : int
            Number of bytes to predict, rounded down to whole windows, which are the same for every trainer on this
            corpus.
        mean_weights : bool
            Whether to evaluate the moving average of the weights.

        Returns
        -------
        float
            Mean loss, nats per byte.

        Raises
        ------
        ValueError
            If the trainer has no moving average.
        """
        model = self._evaluated(recipe, mean_weights)
        windows = held_out_windows(self.corpus, self.config.sequence, n_bytes)
        total = 0.0
        with model.recipe.evaluating():
            for first in range(0, len(windows), self.config.batch):
                part = windows[first : first + self.config.batch]
                total += float(model.loss(part)) * len(part)
        return total / len(windows)

    @with_default_fpenv
    def window_losses(
        self,
        recipe: Recipe | str | None = None,
        *,
        n_bytes: int = EVALUATION_BYTES,
        seed: int | None = None,
        calibration: int = 0,
    ) -> npt.NDArray[np.float64]:
        """Return the mean loss of each of the held-out windows that `evaluate` reads, without changing any state.

        Parameters
        ----------
        recipe : Recipe or str, optional
            Recipe of the forward pass; by default the trainer's, with its scales of delayed scaling.
        n_bytes : int
            Number of bytes to predict, see `evaluate`.
        seed : int, optional
            Seed of the random bits of stochastic rounding in the forward pass; by default the run's.
        calibration : int
            Number of batches of the last steps that another recipe's forward and backward passes process first, for
            scales that depend on earlier values.

        Returns
        -------
        float64 array [windows]
            Losses in nats per byte, in the order of the text.
        """
        own = recipe is None
        if own and seed is None:
            model = self.model
        else:
            chosen = self.recipe if own else load_recipe(recipe or "")
            bound = chosen.bind(self.model.rounding_seed if seed is None else seed, self.config.layers)
            if own:
                bound.load_state_dict(self.model.recipe.state_dict())
            model = self.model.with_bound(bound)
        if not own and calibration:
            self._calibrate(model, min(calibration, self.steps))
            model.recipe.begin_step(self.steps)
        windows = held_out_windows(self.corpus, self.config.sequence, n_bytes)
        found = []
        with model.recipe.evaluating():
            for first in range(0, len(windows), self.config.batch):
                for losses in model.token_losses(windows[first : first + self.config.batch]):
                    found.append(math.fsum(losses) / losses.size)
        return np.array(found)

    def excess_loss(self, *, n_bytes: int = EVALUATION_BYTES, loss: float | None = None) -> float:
        """Return the loss on the held-out windows minus the entropy of the source, nats per byte.

        The source's own probabilities of the same bytes are subtracted, so the rest is due to the model.

        Parameters
        ----------
        n_bytes : int
            Number of bytes to predict.
        loss : float, optional
            Result of `evaluate` for these bytes, if it is already known.

        Raises
        ------
        ValueError
            If the source's probabilities are not known.
        """
        floor = held_out_entropy(self.corpus, self.config.sequence, n_bytes)
        return (self.evaluate(n_bytes=n_bytes) if loss is None else loss) - floor

    def _evaluated(self, recipe: Recipe | str | None, mean_weights: bool) -> Model:
        model = self.model if recipe is None else self.model.with_recipe(load_recipe(recipe))
        if mean_weights:
            if self.ema is None:
                raise ValueError(
                    "mean_weights must be False for a trainer without ema, got True; Trainer(..., ema=0.99) keeps "
                    "mean weights"
                )
            model = copy.copy(model)
            model.params = self.ema.params
        return model

    def perturb(self) -> str:
        """Multiply one weight by 1 + 2^-7, to measure how far a change of the size of a rounding error separates runs.

        This changes the weight's bfloat16 value by one or two steps. It is the middle element of the first layer's
        query projection, or the next nonzero one.

        Returns
        -------
        str
            Description of the weight, for the record.
        """
        name = "layers.0.attn.wq_a"
        weights = self.model.params[name].reshape(-1)
        place = weights.size // 2 + int(np.flatnonzero(weights[weights.size // 2 :])[0])
        weights[place] *= weights.dtype.type(1 + 2**-7)
        return f"{name}[{place}]"

    def calibrate(self, batches: int) -> None:
        """Run the batches before this step forward and backward, so that delayed scaling has a history of amaxes.

        Weights, moments and biases are unchanged; a recipe without amax histories is unaffected. TransformerEngine's
        `fp8_autocast` calls this calibrating.

        Parameters
        ----------
        batches : int
            Number of batches, which are those of the trainer's last steps.

        Raises
        ------
        ValueError
            If the trainer has made fewer steps.
        """
        if not 0 <= batches <= self.steps:
            raise ValueError(f"calibrate: batches must be from 0 to {self.steps}, the steps so far, got {batches!r}")
        self._calibrate(self.model, batches)

    def _calibrate(self, model: Model, batches: int) -> None:
        for step in range(self.steps - batches, self.steps):
            model.recipe.begin_step(step)
            model.loss_and_grads(self._batches[step])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all state that determines the next step to a checkpoint.

        Parameters
        ----------
        path : str or path
            File to write, atomically.

        Raises
        ------
        CheckpointError
            If it cannot be written.
        """
        saving.save(self, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        recipe: Recipe | str | None = None,
        schedule: Schedule | None = None,
        data_seed: int | None = None,
        data: Corpus | None = None,
        recompute: RecomputePolicy | str = SAVE_ALL,
        config: MoEConfig | None = None,
    ) -> Trainer:
        """Continue exactly from a checkpoint, or branch off from it.

        Parameters
        ----------
        path : str or path
            File that `save` wrote.
        recipe : Recipe or str, optional
            Another recipe for the following steps.
        schedule : Schedule, optional
            Another learning rate schedule; its step 0 is the next step.
        data_seed : int, optional
            Seed of the windows and, if the recipe draws any, of the random bits in the following steps, in place of the
            saved one.
        data : Corpus, optional
            Corpus, if it is loaded already; it must be the one that the checkpoint was trained on.
        recompute : RecomputePolicy or str
            Activations that the backward pass recomputes in the following steps; results do not change.
        config : MoEConfig, optional
            Another configuration with the same parameters, such as one with different routing.

        Returns
        -------
        Trainer
            Trainer with the saved state; unless branched, its next step has the bits of the saved trainer's next step.

        Raises
        ------
        CheckpointError
            If the file is damaged or of another version, the corpus is another text, or the parameters differ.

        Warns
        -----
        UserWarning
            If another version of the code wrote the checkpoint, so that the bits of the next steps may differ.
        """
        return saving.load(
            cls,
            path,
            recipe=recipe,
            schedule=schedule,
            data_seed=data_seed,
            data=data,
            recompute=recompute,
            config=config,
        )

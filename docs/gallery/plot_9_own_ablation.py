"""
An ablation of your own
=======================

One file is one question: what is compared (**arms**), how large, and what you expect. It is data, about 40 lines; the
package plans the runs, pairs them by weights and bytes, and says what follows and what does not.
"""

import tempfile
from pathlib import Path

from lowprec.study import Arm, CheckpointSize, Expectation, GradientComparison, MeasurementStudy, sources
from lowprec.study.catalogue import report
from lowprec.study.run.runner import run_study

# %%
# The question: may gradients be quantized with one scale a tensor? The cheapest kind that trains is
# ``MeasurementStudy``: the same batch goes through the same weights in every arm, so nothing is noisy. Some arms are
# always needed beside what is asked: the reference, BF16, BF16 again, and a **control** that must come out worse, or
# the study saw nothing.

small = CheckpointSize(config="nano", checkpoints=1, seeds=2, checkpoint_steps=10, warmup_steps=2)
mine = MeasurementStudy(
    name="one_scale",
    question="May output gradients have one scale a tensor?",
    measurement=GradientComparison(),
    arms=(
        *sources.SAME_WEIGHTS_ARMS,
        Arm("tiles", recipe="dsv3"),
        Arm("tensor", recipe="dsv3", change={"dy": "e4m3fn tensor"}),
    ),
    expectations=(
        Expectation("one scale adds to the gradient's error", "gradient_error", "tensor", "tiles", expected=(1.0, 1.5)),
    ),
    quick=small,
    full=small,
)  # fmt: skip

# %%
# A plan lists the runs; nothing has run yet.

folder = Path(tempfile.mkdtemp()) / "one_scale-quick"
planned = mine.plan(mine.quick, folder)
planned

# %%
# In a file, ``lowprec ablate one_scale.py --quick`` does the rest. Here it is done step by step, in this process:

run_study(planned, jobs=0)
found = report(folder, plot=True)
print([path.name for path in found.files])

# %%
# The report, as it would stand on its page:

found

"""
Writing an ablation
===================

An ablation is a file of about 40 lines that asks one question. It lists the recipes to compare (the **arms**), the size
of the runs, and the results that you expect. lowprec plans the runs, pairs them by weights and data, and reports which
conclusions they support.
"""

import tempfile
from pathlib import Path

from lowprec.study import Arm, CheckpointSize, Expectation, GradientComparison, MeasurementStudy, sources
from lowprec.study.catalogue import report
from lowprec.study.run.runner import run_study

# %%
# The question: may gradients be quantized with one scale per tensor? The cheapest study that trains is a
# ``MeasurementStudy``: every arm processes the same batch with the same weights, which excludes noise. Every study
# also has four standard arms: the reference, BF16, BF16 again, and a **control** that must be detected as worse;
# otherwise the study is not sensitive enough.

small = CheckpointSize(config="nano", checkpoints=1, seeds=2, checkpoint_steps=10, warmup_steps=2)
mine = MeasurementStudy(
    name="one_scale",
    question="May output gradients have one scale per tensor?",
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
# A plan lists the runs and starts none of them:

folder = Path(tempfile.mkdtemp()) / "one_scale-quick"
planned = mine.plan(mine.quick, folder)
planned

# %%
# For a file, ``lowprec ablate one_scale.py --quick`` does the rest. Here, the steps run in this process:

run_study(planned, jobs=0)
found = report(folder, plot=True)
print([path.name for path in found.files])

# %%
# The report:

found

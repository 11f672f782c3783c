"""
An ablation of your own
=======================

One file is one question: what is compared (**arms**), how large, and what you expect. It is data, about 40 lines; the
package plans the runs, pairs them by weights and bytes, and says what follows.
"""

import tempfile
from pathlib import Path

from lowprec.study.kinds.catalogue import kind_of
from lowprec.study import Operands, TensorArm, TensorSetting, TensorStudy, load

# %%
# The shortest kind asks about one product of tensors and trains nothing. This one is in ``ablations/``:

study = load("accumulation")
print(study.question)
print(", ".join(arm.name for arm in study.arms))

# %%
# stub

"""Products as tensor cores sum them: accumulators and libraries as data, single instructions, whole GEMMs."""

from . import kinds as kinds  # an accumulator finds its kind by name: all are there before the first one is made

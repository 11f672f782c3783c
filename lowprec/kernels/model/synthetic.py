"""A source of symbols with known probabilities, and the filter that computes them.

See `lowprec.moe.data.synthetic`.
"""

import numpy as np

from lowprec._jit import kernel
from lowprec.kernels.cast.random_bits import random_word
from lowprec.kernels.elementary import log64


@kernel
def generate(successors, thresholds, seed_lo, seed_hi, switch, start, stop, symbols):
    """Fill `symbols` from a hidden domain and copy distance (0: no copy), with four random words per symbol.

    successors uint8 [domains, n, n, s]; thresholds uint32 of the same shape, cumulative and ending in 2^32 - 1; switch,
    start and stop are probabilities in units of 2^-32.
    """
    domains, choices = successors.shape[0], successors.shape[3]
    reach = np.uint32(64)
    domain, distance = 0, 0
    for t in range(symbols.size):
        index = 4 * t
        hi, lo = np.uint32(index >> 32), np.uint32(index & 0xFFFFFFFF)
        moves = random_word(seed_lo, seed_hi, lo, hi)
        where = random_word(seed_lo, seed_hi, np.uint32(lo + np.uint32(1)), hi)
        copies = random_word(seed_lo, seed_hi, np.uint32(lo + np.uint32(2)), hi)
        word = random_word(seed_lo, seed_hi, np.uint32(lo + np.uint32(3)), hi)
        if moves < switch:
            domain = int(np.uint32(where >> np.uint32(16))) * domains >> 16
        if distance > 0:
            if copies < stop:
                distance = 0
        elif copies < start:
            distance = 1 + int(np.uint32(where & np.uint32(0xFFFF)) % reach)
        if distance > 0:
            symbols[t] = symbols[t - distance] if t >= distance else 0
        else:
            before = symbols[t - 1] if t >= 1 else 0
            earlier = symbols[t - 2] if t >= 2 else 0
            choice = 0
            while choice < choices - 1 and word > thresholds[domain, earlier, before, choice]:
                choice += 1
            symbols[t] = successors[domain, earlier, before, choice]


@kernel
def surprise(successors, thresholds, switch, start, stop, symbols, alpha, losses):
    """Write -log p(symbol | all symbols before it) in nats: the forward algorithm over domain and distance.

    alpha float64 [domains, 65] is the filter's workspace; it begins in domain 0 without a copy, as `generate` does.
    """
    unit = 2.0**-32
    p_switch, p_start, p_stop = switch * unit, start * unit, stop * unit
    domains, choices = successors.shape[0], successors.shape[3]
    reach = alpha.shape[1] - 1
    alpha[:, :] = 0.0
    alpha[0, 0] = 1.0
    for t in range(symbols.size):
        # The domain may change; a copy may begin or end.
        for c in range(reach + 1):
            column = 0.0
            for d in range(domains):
                column += alpha[d, c]
            for d in range(domains):
                alpha[d, c] = (1.0 - p_switch) * alpha[d, c] + p_switch * column / domains
        for d in range(domains):
            idle, ending = alpha[d, 0], 0.0
            for c in range(1, reach + 1):
                ending += alpha[d, c] * p_stop
                alpha[d, c] = alpha[d, c] * (1.0 - p_stop) + idle * p_start / reach
            alpha[d, 0] = idle * (1.0 - p_start) + ending
        # Likelihood of the symbol in each state.
        symbol = symbols[t]
        before = symbols[t - 1] if t >= 1 else 0
        earlier = symbols[t - 2] if t >= 2 else 0
        total = 0.0
        for d in range(domains):
            chance, last = 0.0, -1.0
            for i in range(choices):
                if successors[d, earlier, before, i] == symbol:
                    chance += (np.float64(thresholds[d, earlier, before, i]) - last) * unit
                last = np.float64(thresholds[d, earlier, before, i])
            alpha[d, 0] *= chance
            total += alpha[d, 0]
        for c in range(1, reach + 1):
            source = symbols[t - c] if t >= c else 0
            for d in range(domains):
                if source != symbol:
                    alpha[d, c] = 0.0
                total += alpha[d, c]
        for d in range(domains):
            for c in range(reach + 1):
                alpha[d, c] /= total
        losses[t] = -log64(total)

"""The synthetic source: the filter against one written out state by state, and a floor that models stay above."""

import math

import numpy as np
import pytest

from lowprec.moe.data import corpus as data
from lowprec.moe.data import sources, synthetic
from lowprec.moe.run.train import Schedule, Trainer


def written_out(source, symbols):
    """-log p of each symbol by the full joint distribution over (domain, distance), in plain Python."""
    successors, thresholds = source
    unit = 2.0**-32
    switch, start, stop = (float(p) * unit for p in (synthetic.SWITCH, synthetic.START, synthetic.STOP))
    states = {(0, 0): 1.0}
    losses = []
    for t, symbol in enumerate(symbols.tolist()):
        moved = {}
        for (d, c), p in states.items():
            for e in range(synthetic.DOMAINS):
                q = p * ((1 - switch) * (d == e) + switch / synthetic.DOMAINS)
                if c:
                    moved[e, 0] = moved.get((e, 0), 0) + q * stop
                    moved[e, c] = moved.get((e, c), 0) + q * (1 - stop)
                else:
                    moved[e, 0] = moved.get((e, 0), 0) + q * (1 - start)
                    for k in range(1, synthetic.REACH + 1):
                        moved[e, k] = moved.get((e, k), 0) + q * start / synthetic.REACH
        past = [0, 0, *symbols[:t].tolist()]
        seen = {}
        for (d, c), p in moved.items():
            if c:
                chance = float((symbols[t - c] if t >= c else 0) == symbol)
            else:
                ends = [-1.0, *thresholds[d, past[-2], past[-1]].tolist()]
                chance = sum(
                    (ends[i + 1] - ends[i]) * unit
                    for i, s in enumerate(successors[d, past[-2], past[-1]].tolist())
                    if s == symbol
                )
            if chance:
                seen[d, c] = p * chance
        total = sum(seen.values())
        states = {state: p / total for state, p in seen.items()}
        losses.append(-math.log(total))
    return losses


def test_the_filter_is_the_joint_distribution():
    source = synthetic.chains(3)
    symbols = synthetic.generate(source, 5, 150)
    np.testing.assert_allclose(synthetic.surprise(source, symbols), written_out(source, symbols), rtol=1e-11)


def test_chances_add_up_to_one():
    source = synthetic.chains(3)
    past = synthetic.generate(source, 5, 300)
    nexts = [np.append(past, np.uint8(symbol)) for symbol in range(synthetic.SYMBOLS)]
    total = sum(math.exp(-synthetic.surprise(source, symbols)[-1]) for symbols in nexts)
    assert total == pytest.approx(1.0, abs=1e-12)


@pytest.mark.slow
def test_the_corpus_is_the_same_everywhere_and_known():
    corpus = sources.load_corpus("synthetic")
    assert corpus.sha256 == "bc77ecd5e99cdc0d8559c5987d56912acb6c3ad419d65bfeb227ef79bb41f600"
    assert corpus.oracle.shape == corpus.held_out.shape
    assert corpus.oracle.min() >= 0
    # Symbols that the source was sure of are the ones that came: surprises of 1/p in the long run.
    likely = corpus.oracle < -math.log(0.5)
    claimed = np.exp(-corpus.oracle[likely]).mean()
    assert 0.75 < claimed < 1.0
    assert 1.3 < corpus.oracle.mean() < 1.4


@pytest.mark.slow
def test_runs_report_what_is_above_the_floor():
    corpus = sources.load_corpus("synthetic")
    trainer = Trainer("nano", "bf16", corpus, seed=0, schedule=Schedule(2e-3, 2, 50))
    first = trainer.excess(n_bytes=4096)
    for _ in range(5):
        trainer.step()
    loss = trainer.evaluate(n_bytes=4096)
    assert 0 < trainer.excess(n_bytes=4096) == loss - data.held_out_floor(corpus, 128, 4096) < first
    plain = data.corpus_from_bytes("x", bytes(range(256)) * 1000)
    with pytest.raises(ValueError, match="corpus 'x' has no known source; 'synthetic' has one"):
        data.held_out_floor(plain, 128, 4096)

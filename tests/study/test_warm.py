"""What is compiled before runs start, and where."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import lowprec as lp
from lowprec.study.run import executors, warm
from lowprec.study.run.progress import Silent


class Backend:
    """Counts steps instead of doing them."""

    name = "counts steps"

    def __init__(self) -> None:
        self.steps: list[str] = []

    def load_corpus(self, source: str) -> str:
        return source

    def new(self, config: str, recipe: str, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(step=lambda: self.steps.append(recipe))


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_products_are_compiled_elsewhere_only_where_nothing_is(
    cold: bool, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere: list[list[str]] = []

    @contextmanager
    def workers(jobs: int):
        assert jobs == 1
        with executors.InlineExecutor() as pool:
            yield pool

    monkeypatch.setattr(warm, "_nothing_is_compiled", lambda: cold)
    monkeypatch.setattr(warm, "multiply_once", lambda given: elsewhere.append(list(given)))
    monkeypatch.setattr(executors, "workers", workers)
    monkeypatch.setattr(executors, "cores", lambda: 2)
    warm._warmed().clear()
    backend = Backend()
    tasks = [SimpleNamespace(recipe_name=r, recipe=r, backend=backend, schedule={}, data="") for r in ("dsv3", "mxfp8")]
    warm.warm(tasks, Silent(), alone=alone)
    beside = cold and not alone
    assert elsewhere == ([["dsv3", "mxfp8"]] if beside else [])
    assert backend.steps == [*(["bf16"] if beside else []), "dsv3", "mxfp8"]
    warm._warmed().clear()


def test_products_of_a_recipe_go_through_every_quantizer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    real = lp.scaling.quantize.quantize
    import lowprec.recipe.tensors as tensors

    def quantize(*args: object, **options: object) -> object:
        result = real(*args, **options)
        seen.add((result.quantizer.name, str(result.granularity)))
        return result

    monkeypatch.setattr(tensors, "quantize", quantize)
    warm.multiply_once(["dsv3", "bf16"])
    assert {granularity for _, granularity in seen} >= {"1x128", "128x128", "128x1"}

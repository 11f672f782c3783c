"""Studies of the tests are made on the spot: their ranges count as registered, but where registration is tested."""

import shutil

import pytest

from lowprec.study import catalogue
from lowprec.study.design.registration import Registration


@pytest.fixture(scope="module", autouse=True)
def _registered(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__ != "test_registration":
            patch.setattr(Registration, "covers", lambda self, item: True)
        yield


@pytest.fixture(scope="module")
def toy(request):
    """The toy study of the module's kind."""
    return request.module.TOY


@pytest.fixture(scope="module")
def finished(toy, tmp_path_factory):
    """The folder of the toy study after all of its runs."""
    return toy.run(tmp_path_factory.mktemp("runs") / "toy")


@pytest.fixture(scope="module")
def reported(finished):
    """Its report."""
    return catalogue.report(finished)


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of its folder, beside its checkpoints."""
    return shutil.copytree(finished.parent, tmp_path / "runs") / "toy"


def pytest_generate_tests(metafunc):
    """Make a case of everything that can happen to a toy study."""
    if "damage" in metafunc.fixturenames and hasattr(metafunc.module, "TOY"):
        metafunc.parametrize("damage", metafunc.module.TOY.damage)

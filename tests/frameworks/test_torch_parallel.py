"""Data-parallel and sharded models of one rank: the same bits as without."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import lowprec.torch as lpt  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # of torch's own
dist = torch.distributed


@pytest.fixture
def alone(tmp_path):
    """Join a group of one rank."""
    if not dist.is_available():
        pytest.skip("this torch has no distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model(recipe):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 128)) for _ in range(3)]
    return lpt.convert(nn.Sequential(*blocks), recipe)


def steps(run, plain, gradient=lambda g: g):
    """Return outputs and gradients of two steps."""
    found = []
    for step in range(2):
        x = torch.from_numpy(np.random.default_rng(step).standard_normal((8, 128)).astype(np.float32))
        run.zero_grad()
        y = run(x)
        y.square().sum().backward()
        found += [y.detach().clone(), *(gradient(p.grad).clone() for p in plain.parameters())]
    return found


@pytest.mark.parametrize("recipe", ["dsv3", "nvfp4", "te_delayed"])
def test_data_parallel(alone, recipe):
    plain = model(recipe)
    expected = steps(plain, plain)
    other = model(recipe)
    found = steps(nn.parallel.DistributedDataParallel(other), other)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("recipe", ["dsv3", "nvfp4", "te_delayed"])
def test_fully_sharded(alone, recipe):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    plain = model(recipe)
    expected = steps(plain, plain)
    other = model(recipe)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    for block in other:
        fsdp.fully_shard(block, mesh=mesh)
    fsdp.fully_shard(other, mesh=mesh)
    found = steps(other, other, lambda g: g.full_tensor())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))

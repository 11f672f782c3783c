"""Catalogues help when a name is wrong."""

import pytest

import lowprec as lp
from lowprec.registry import Registry, UnknownNameError


def test_lookup_by_name_alias_and_object() -> None:
    e4m3 = lp.formats["e4m3fn"]
    assert lp.formats["float8_e4m3fn"] is e4m3
    assert lp.formats.get(e4m3) is e4m3
    assert "float8_e4m3fn" in lp.formats
    assert "float8_e4m3fn" not in lp.formats.names()


@pytest.mark.parametrize(("wrong", "close"), [("e4m3fm", "e4m3fn"), ("bfloat61", "bfloat16"), ("float32x", "float32")])
def test_unknown_names_get_the_close_ones(wrong: str, close: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        lp.encode(1.0, wrong)
    assert repr(wrong) in str(caught.value)
    assert repr(close) in str(caught.value)
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, ValueError)


def test_far_off_names_get_the_whole_list() -> None:
    with pytest.raises(UnknownNameError, match="known: hopper_fp8, ada_fp8"):
        _ = lp.accumulators["zzzzzz"]


def test_wrong_type_and_taken_name() -> None:
    with pytest.raises(TypeError, match=r"^an accumulator is a name or an Accumulator, not 3$"):
        lp.accumulators.get(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^a format is a name or a Format, not 8"):
        lp.encode(1.0, 8)  # type: ignore[arg-type]
    registry = Registry("number", int)
    registry.register("one", 1)
    with pytest.raises(ValueError, match="'one' is registered already"):
        registry.register("one", 2)

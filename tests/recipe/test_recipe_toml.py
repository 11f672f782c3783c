"""Recipes as TOML and back, whole or as what differs from another, and errors that quote what came."""

import dataclasses
import json

import pytest

from lowprec.recipe import Recipe, Storage, recipes
from lowprec.registry import UnknownNameError


@pytest.mark.parametrize("name", recipes.names())
def test_toml_gives_the_recipe_again(name):
    recipe = recipes[name]
    text = recipe.to_toml()
    again = Recipe.from_toml(text)
    assert again == recipe
    assert again.source == recipe.source
    assert again.to_toml() == text
    changed = recipe.with_(storage=(Storage("embed", "fp8_1x128"),), accumulator="float32", promote_every=None)
    assert Recipe.from_toml(changed.to_toml()) == changed


def test_toml_with_a_base():
    text = 'base = "dsv3"\nname = "mine"\ndy = "e5m2 1x128"\npromote_every = "never"\n'
    text += 'fprop = { accumulator = "exact" }\nprotect = ["layers.0.*"]\n'
    text += '[[storage]]\ntensors = "embed"\ncodec = "fp8_1x128"\n'
    recipe = Recipe.from_toml(text)
    assert recipe == dataclasses.replace(
        recipes["dsv3"].with_(
            dy="e5m2 1x128", promote_every=None, fprop={"accumulator": "exact"}, protect=["layers.0.*"]
        ),
        name="mine",
        storage=(Storage("embed", "fp8_1x128"),),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "this is no TOML"),
        ("description = 'x'", "'name' is missing"),
        ("base = 'dsv33'", "unknown recipe 'dsv33': did you mean 'dsv3'"),
        ("base = 'dsv3'\ndispach = 'bf16'", "unknown entry of recipe 'dispach': did you mean 'dispatch'"),
        ("name = 'a'\ncombin = 'bf16'", "unknown entry of recipe 'combin': did you mean 'combine'"),
        ("name = 'a'\ncombine = 3", "combine = 3: a text is needed"),
        ("name = 'a'\nlinear = 3", r"linear is written as tables \[\[linear\]\]"),
        ("name = 'a'\n[[linear]]\nout = 'bfloat16'", "'layers', the pattern of names, is missing"),
        ("name = 'a'\n[[linear]]\nlayers = 'hed'", "pattern 'hed' matches no layer of any model: did you mean 'head'"),
        ("name = 'a'\n[[linear]]\nlayers = 'head'\nfprop = 'fp8'", "fprop = 'fp8': a table is needed"),
        ("name = 'a'\n[[linear]]\nlayers = 'head'\nfprop = { c = 'x' }", "unknown entry of .* fprop 'c'"),
        ("name = 'a'\n[[linear]]\nlayers = 'head'\nfprop = { a = 'fp9' }", "unknown word 'fp9'"),
        ("name = 'a'\n[[storage]]\ntensors = 'embed'", "'tensors' and 'codec' are needed"),
    ],
)
def test_toml_that_is_no_recipe(text, message):
    with pytest.raises((ValueError, UnknownNameError), match=message):
        Recipe.from_toml(text)


def test_plain_data_for_results():
    plain = recipes["dsv3"].as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["linear"][0]["fprop"]["a"] == "e4m3fn 1x128 ue8m0"

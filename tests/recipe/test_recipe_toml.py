"""Recipes as TOML and back, whole or as what differs from another, and errors that quote what came."""

import dataclasses
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from lowprec.recipe import Recipe, StorageRule, load_recipe, recipes


@pytest.mark.parametrize("name", recipes.names())
def test_toml_gives_the_recipe_again(name):
    recipe = recipes[name]
    again = Recipe.from_toml(recipe.to_toml())
    assert (again, again.source, again.to_toml()) == (recipe, recipe.source, recipe.to_toml())
    changed = recipe.with_(storage=(StorageRule("embed", "fp8_1x128"),), accumulator="float32", promote_every=None)
    assert Recipe.from_toml(changed.to_toml()) == changed


def test_toml_with_a_base():
    text = 'base = "dsv3"\nname = "mine"\ndy = "e5m2 1x128"\npromote_every = "never"\n'
    text += 'fprop = { accumulator = "exact" }\nprotect = ["layers.0.*"]\n'
    text += '[[storage]]\ntensors = "embed"\ncodec = "fp8_1x128"\n'
    changes = {"fprop": {"accumulator": "exact"}, "storage": (StorageRule("embed", "fp8_1x128"),)}
    changes |= {"dy": "e5m2 1x128", "promote_every": None, "protect": ["layers.0.*"]}
    assert Recipe.from_toml(text) == dataclasses.replace(recipes["dsv3"].with_(**changes), name="mine")


HEAD = "name = 'a'\n[[linear]]\nlayers = 'head'\n"
test_refused = refusals(
    [
        (f"parse({text!r})", message)
        for text, message in (
            ("name = ", r"recipe is not TOML: Invalid value \(at end of document\)"),
            ("description = 'x'", "recipe must have a 'name', or a 'base' from which it differs, got 'description'"),
            ("base = 'dsv33'", "unknown recipe 'dsv33': did you mean 'dsv3'"),
            ("base = 'dsv3'\ndispach = 'bf16'", "unknown entry of recipe 'dispach': did you mean 'dispatch'"),
            ("base = 'dsv3'\nrules = 7", "unknown entry of recipe 'rules'"),
            ("base = 'dsv3'\nfprop = { q = 'x' }", "fprop 'q'"),
            ("base = 'dsv3'\n[layers.'head']\nq = 'x'", "layers 'head': unknown field 'q' of a linear layer:"),
            ("base = 'dsv3'\npromote_every = 0", "promote_every must be an integer >= 1 or None, got 0"),
            ("name = 'a'\ncombin = 'bf16'", "unknown entry of recipe 'combin': did you mean 'combine'"),
            ("name = 'a'\nlinear = 3", r"recipe: linear must be tables \[\[linear\]\], got 3"),
            ("name = 'a'\n[[linear]]\nout_format = 'bfloat16'",
             r"\[\[linear\]\] must have 'layers', a pattern of names,"),
            ("name = 'a'\n[[linear]]\nlayers = 'hed'", "'hed' matches no layer of any model: did you mean 'head'"),
            (HEAD + "fprop = { c = 'x' }", "unknown entry of .* fprop 'c'"),
            (HEAD + "fprop = { a = 'fp9' }", "unknown word 'fp9'"),
            ("name = 'a'\n[[storage]]\ntensors = 'embed'", r"\[\[storage\]\] must have 'tensors' and 'codec', got"),
        )
    ]
    + [(f"unnamed({name!r}).to_toml()", "name must be a string")
       for name in ("\ud800", "a\udfffb", 5, None, ["x"], 1.5)],
    lambda: {
        "parse": Recipe.from_toml, "unnamed": lambda name: dataclasses.replace(recipes["bf16"], name=name),
    },
)  # fmt: skip


def test_plain_data_for_results():
    plain = recipes["dsv3"].as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["linear"][0]["fprop"]["a"] == "e4m3fn 1x128 ue8m0"


BASE = "base = 'dsv3'\n"

TEXTS = [f.name for f in dataclasses.fields(Recipe) if f.name not in ("rules", "storage")]
WORDS = ("x", "w", "dy", "accumulator", "library", "injected_error", "wgrad_input", "dgrad_weight", "moments")
#: Where a key stands, and what it takes.
KEYS = {
    **{f"name = 'a'\n{key} =": "a string" for key in TEXTS if key != "name"},
    **{f"{BASE}{key} =": "a string" for key in (*TEXTS, *WORDS)},
    **{f"{HEAD}{key} =": "a string" for key in ("wgrad_input", "dgrad_weight", "out_format")},
    **{f"{HEAD}wgrad.{key} =": "a string" for key in ("a", "b", "accumulator", "library", "injected_error")},
    **{f"{BASE}dgrad.{key} =": "a string" for key in ("a", "b", "accumulator", "library", "injected_error")},
    **{f"{BASE}[layers.'head']\n{key} =": "a string" for key in ("x", "out_format", "accumulator", "fprop.a")},
    **{f"{at}promote_every =": "an integer or 'never'" for at in (BASE, f"{BASE}wgrad.", f"{HEAD}fprop.",
                                                                    f"{BASE}[layers.'head']\nfprop.")},
    **{f"{BASE}{key} =": "a list of strings" for key in ("protect", "quantize")},
    **{f"{at}fprop =": "a table" for at in (BASE, HEAD, f"{BASE}[layers.'head']\n")},
    f"{BASE}layers =": "a table", f"{BASE}layers.'head' =": "a table", "name =": "a string", "base =": "a string",
    "name = 'a'\n[[storage]]\ncodec = 'bf16'\ntensors =": "a string",
    "name = 'a'\n[[storage]]\ntensors = 'embed'\ncodec =": "a string",
    "name = 'a'\n[[linear]]\nlayers =": "a string",
}  # fmt: skip
OF_TYPES = ("5", "-1", "1.5", "nan", "true", "[]", "['dsv3']", "[1]", "{}", "{ a = 1 }", "1979-05-27", "'text'")


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.replace("\n", " "))
def test_every_value_is_of_the_type_that_its_key_has(key):
    """A value of another type is quoted, with the key; one of its type is taken or refused for what it says."""
    name = key.split("\n")[-1].removesuffix(" =").rpartition(".")[2].strip("'")
    for value in OF_TYPES:
        try:
            recipe = Recipe.from_toml(f"{key} {value}\n")
        except ValueError as error:
            message = str(error)
        else:
            assert Recipe.from_toml(recipe.to_toml()) == recipe
            continue
        assert "\n" not in message
        assert "unhashable" not in message
        if value not in ("'text'", "{}", "{ a = 1 }", "5", "-1", "[]"):
            assert f"{name} must be {KEYS[key]}" in message or KEYS[key] in ("a list of strings", "a table"), (
                value,
                message,
            )
    refused = {"a string": "5", "a table": "5", "a list of strings": "[1]", "an integer or 'never'": "1.5"}[KEYS[key]]
    with pytest.raises(
        ValueError, match=rf"{re.escape(name)} must be {re.escape(KEYS[key])}.*, got {re.escape(refused)}"
    ):
        Recipe.from_toml(f"{key} {refused}\n")


@pytest.mark.slow
@settings(max_examples=60)
@given(name=st.text(), description=st.text(), source=st.text())
def test_any_text_comes_back(name, description, source):
    recipe = dataclasses.replace(recipes["mxfp8"], name=name, description=description, source=source)
    back = Recipe.from_toml(recipe.to_toml())
    assert (back, back.name, back.description, back.source) == (recipe, name, description, source)


@pytest.mark.parametrize("code", [*range(0x20), 0x22, 0x5C, 0x7F, 0x80, 0x85, 0x9F, 0x2028, 0xFEFF, 0xFFFE, 0x10FFFF])
def test_special_characters_come_back(code, tmp_path):
    recipe = dataclasses.replace(recipes["bf16"], name=f"a{chr(code)}b", description=chr(code) * 3)
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "r.toml").write_bytes(mark + recipe.to_toml().encode())
        assert load_recipe(str(tmp_path / "r.toml")) == recipe

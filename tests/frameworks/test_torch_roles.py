"""Roles of linear layers: of models of transformers, written by hand from their architectures, and of odd models."""

from fnmatch import fnmatchcase

import pytest
from refusals import refusals

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import lowprec.torch as lpt  # noqa: E402
from lowprec.registry import UnknownNameError  # noqa: E402

pytestmark = pytest.mark.torch
GUESS = "?"
SHAPE = {"vocab_size": 80, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
SIZES = {**SHAPE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 16, "v_head_dim": 16, "qk_nope_head_dim": 16,
}  # fmt: skip

ATTENTION = {"*.self_attn.[qkv]_proj": "attn.wq_a", "*.self_attn.o_proj": "attn.wo"}
GATED = {"*.mlp.gate_proj": "ffn.w1", "*.mlp.up_proj": "ffn.w3", "*.mlp.down_proj": "ffn.w2"}
HEAD = {"lm_head": "head"}
OF_EXPERTS = {
    f"*.experts.{e}.{leaf}": f"ffn.experts.{e}.{role}"
    for e in range(4)
    for leaf, role in (("gate_proj", "w1"), ("down_proj", "w2"))
}
SHARED = {
    "*.shared_expert*.gate_proj": "ffn.shared.w1", "*.shared_expert*.up_proj": "ffn.shared.w3",
    "*.shared_expert*.down_proj": "ffn.shared.w2",
}  # fmt: skip
T5 = {
    "*Attention.[qkv]": "attn.wq_a", "*Attention.o": "attn.wo", "*.DenseReluDense.wi_0": "ffn.w1",
    "*.DenseReluDense.wi_1": "ffn.w3", "*.DenseReluDense.wi": "ffn.w1", "*.DenseReluDense.wo": "ffn.w2", **HEAD,
}  # fmt: skip
BERT = {
    "*.attention.self.*": "attn.wq_a", "*.attention.output.dense": "attn.wo", "*.intermediate.dense": "ffn.w1",
    "*.layer.?.output.dense": "ffn.w2",
}  # fmt: skip
T5_SIZES = {**SHAPE, "d_model": 64, "d_ff": 96, "num_layers": 2, "num_heads": 4}
WHISPER = {
    f"{side}_{what}": number
    for side in ("encoder", "decoder")
    for what, number in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))
}
MAMBA = {**SHAPE, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
IMAGES = {"image_size": 32, "patch_size": 16}
#: Models of transformers, their sizes, and the roles of their layers; a guess where recipes have no such layer.
MODELS = {
    "Llama": ("LlamaForCausalLM", GROUPED, {**ATTENTION, **GATED, **HEAD}),
    "Qwen3Moe": ("Qwen3MoeForCausalLM", {**GROUPED, **EXPERTS}, {**ATTENTION, **OF_EXPERTS, **HEAD}),
    "Qwen2Moe": ("Qwen2MoeForCausalLM", {**SIZES, **EXPERTS, "shared_expert_intermediate_size": 56},
                 {**ATTENTION, **OF_EXPERTS, **SHARED, "*.shared_expert_gate": "ffn.gate", **HEAD}),
    "Mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}, {**ATTENTION, **OF_EXPERTS, **HEAD}),
    "GptOss": ("GptOssForCausalLM", {**GROUPED, "num_local_experts": 4}, {**ATTENTION, **OF_EXPERTS, **HEAD}),
    "DeepseekV3": ("DeepseekV3ForCausalLM",
                   {**SIZES, **LATENT, "num_key_value_heads": 4, "moe_intermediate_size": 48, "n_shared_experts": 1,
                    "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 2,
                    "topk_group": 1},
                   {"*.self_attn.o_proj": "attn.wo", "*.self_attn.*": "attn.wq_a", **GATED, **OF_EXPERTS, **SHARED,
                    **HEAD}),
    "GPT2": ("GPT2LMHeadModel", {**SHAPE, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
             {"*.attn.c_attn": "attn.wq_a", "*.attn.c_proj": "attn.wo", "*.mlp.c_fc": "ffn.w1",
              "*.mlp.c_proj": "ffn.w2", **HEAD}),
    "GPTNeoX": ("GPTNeoXForCausalLM", SIZES,
                {"*.query_key_value": "attn.wq_a", "*.attention.dense": "attn.wo", "*.mlp.dense_h_to_4h": "ffn.w1",
                 "*.mlp.dense_4h_to_h": "ffn.w2", **HEAD, "embed_out": "head"}),
    "Phi3": ("Phi3ForCausalLM", GROUPED,
             {"*.qkv_proj": "attn.wq_a", "*.o_proj": "attn.wo", "*.gate_up_proj": "ffn.w1", "*.down_proj": "ffn.w2",
              **HEAD}),
    "Bert": ("BertForMaskedLM", SIZES, {**BERT, "cls.*.transform.dense": GUESS, "cls.predictions.decoder": "head"}),
    "BertClassifier": ("BertForSequenceClassification", {**SIZES, "num_labels": 3},
                       {**BERT, "bert.pooler.dense": GUESS, "classifier": GUESS}),
    "Albert": (
        "AlbertForMaskedLM",
        {**SIZES, "embedding_size": 32},
        {
            "*.embedding_hidden_mapping_in": GUESS,
            "*.attention.*": GUESS,
            "*.ffn": "ffn.w1",
            "*.ffn_output": "ffn.w2",
            "predictions.dense": GUESS,
            "predictions.decoder": "head",
        },
    ),
    "Electra": (
        "ElectraForCausalLM",
        {**SIZES, "embedding_size": 32},
        {**BERT, "*.embeddings_project": GUESS, "generator_predictions.dense": GUESS, "generator_lm_head": "head"},
    ),
    "JetMoe": (
        "JetMoeForCausalLM",
        {**SIZES, "num_key_value_heads": 2, "kv_channels": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
        {"*.mlp.router.layer": "ffn.gate", "*.self_attention.*": GUESS, **HEAD},
    ),
    "Llama4Text": ("Llama4TextModel", {**GROUPED, "num_local_experts": 4}, {**ATTENTION, **SHARED}),
    "XLNet": (
        "XLNetLMHeadModel",
        {**SHAPE, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 96},
        {"*.ff.layer_1": "ffn.w1", "*.ff.layer_2": "ffn.w2", "lm_loss": "head"},
    ),
    "T5": ("T5ForConditionalGeneration", {**T5_SIZES, "d_kv": 16}, T5),
    "T5v1_1": ("T5ForConditionalGeneration",
               {**T5_SIZES, "d_kv": 8, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, T5),
    "Mamba": ("MambaForCausalLM", MAMBA, {"*.mixer.*": GUESS, **HEAD}),
    "Mamba2": ("Mamba2ForCausalLM", {**MAMBA, "num_heads": 8, "head_dim": 16, "n_groups": 1},
               {"*.mixer.*": GUESS, **HEAD}),
    "ViT": ("ViTForImageClassification", {**{k: v for k, v in SIZES.items() if k not in SHAPE}, **IMAGES},
            {"*.attention.[qkv]_proj": "attn.wq_a", "*.attention.o_proj": "attn.wo",
             "*.attention.attention.*": "attn.wq_a", "*.attention.output.dense": "attn.wo", "*.fc1": "ffn.w1",
             "*.fc2": "ffn.w2", "*.intermediate.dense": "ffn.w1", "*.layer.?.output.dense": "ffn.w2",
             "classifier": GUESS}),
    "Whisper": ("WhisperForConditionalGeneration",
                {**SHAPE, **WHISPER, "d_model": 64, "decoder_start_token_id": 1, "num_mel_bins": 16},
                {"*_attn.[qkv]_proj": "attn.wq_a", "*_attn.out_proj": "attn.wo", "*.fc1": "ffn.w1", "*.fc2": "ffn.w2",
                 "proj_out": "head"}),
}  # fmt: skip


def role_in_block(row):
    return GUESS if row.guess else row.role.split(".", 2)[-1] if row.role != "head" else "head"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers' own
@pytest.mark.parametrize("name", MODELS)
def test_roles_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    kind, sizes, expected = MODELS[name]
    kind = getattr(transformers, kind)
    model = kind(kind.config_class(**sizes))
    rows = lpt.report(lpt.convert(model, "dsv3")).rows
    found = {row.name: role_in_block(row) for row in rows}
    by_hand = {n: next((role for p, role in expected.items() if fnmatchcase(n, p)), None) for n in found}
    assert found == by_hand
    blocks = [row for row in rows if row.role != "head" and not row.guess]
    assert all(f".{row.role.split('.')[1]}." in row.name for row in blocks)
    if any(role == GUESS for role in by_hand.values()):
        with pytest.raises(ValueError, match=r"strict=True: .*by a guess"):
            lpt.convert(model, "dsv3", strict=True)
        assert not any(isinstance(module, lpt.Linear) for module in model.modules())


class Attention(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.first, self.second = nn.Linear(width, 3 * inner), nn.Linear(inner, width)


class Experts(nn.Module):
    def __init__(self, width, hidden, count, routed=True):
        super().__init__()
        self.many = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.Linear(hidden, width)) for _ in range(count)
        )
        self.score = nn.Linear(width, count if routed else count + 1)
        self.all = nn.Sequential(nn.Linear(width, 3 * hidden), nn.ReLU(), nn.Linear(3 * hidden, width))


class Block(nn.Module):
    def __init__(self, routed=True):
        super().__init__()
        self.a, self.b = Attention(32, 24), Experts(32, 40, 4, routed)


class Odd(nn.Module):
    """Model whose names mislead."""

    def __init__(self, routed=True):
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.parts = nn.ModuleList(Block(routed) for _ in range(2))
        self.o_proj = nn.Linear(32, 50, bias=False)


def test_an_attention_with_other_weights_is_a_guess():
    model = nn.ModuleDict({"0": Attention(32, 24)})
    assert roles_of(model) == {"0.first": "attn.wq_a", "0.second": "attn.wo"}
    lpt.restore(model)["0"].table = nn.Parameter(torch.ones(8, 4))
    assert roles_of(model) == {"0.first": GUESS, "0.second": GUESS}


def roles_of(model, **options):
    return {row.name: role_in_block(row) for row in lpt.report(lpt.convert(model, "dsv3", **options)).rows}


ODD = {
    "a.first": "attn.wq_a", "a.second": "attn.wo", "b.score": "ffn.gate", "b.all.0": "ffn.shared.w1",
    "b.all.2": "ffn.shared.w2", **{f"b.many.{e}.0": f"ffn.experts.{e}.w1" for e in range(4)},
    **{f"b.many.{e}.1": f"ffn.experts.{e}.w2" for e in range(4)},
}  # fmt: skip


def test_structure_decides_where_names_mislead():
    expected = {f"parts.{block}.{name}": role for block in range(2) for name, role in ODD.items()}
    assert roles_of(Odd()) == {**expected, "o_proj": "head"}


def test_experts_without_a_router_are_a_guess():
    found = roles_of(Odd(routed=False))
    assert {found[f"parts.0.b.many.{e}.{i}"] for e in range(4) for i in range(2)} == {GUESS}
    assert found["parts.0.b.score"] == GUESS


def test_a_tied_weight_is_the_head():
    model = Odd()
    model.parts[1].b.score = nn.Linear(32, 50, bias=False)
    model.parts[1].b.score.weight = model.table.weight
    assert roles_of(model)["parts.1.b.score"] == "head"


class Square(nn.Module):
    """An attention whose four projections have one shape."""

    def __init__(self, *names):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(32, 32))


class SquareAttention(Square):
    pass


@pytest.mark.parametrize(("kind", "names", "output", "guesses"), [
    (SquareAttention, "a b c o_proj", "attn.wo", []),
    (SquareAttention, "wo a b c", "attn.wo", []),
    (SquareAttention, "a b c d", "attn.wo", ["a", "b", "c", "d"]),
    (Square, "q k v o_proj", "attn.wo", ["q", "k", "v", "o_proj"]),
    (Square, "q k v other", "attn.wq_a", ["q", "k", "v", "other"]),
])  # fmt: skip
def test_one_shape_is_told_apart_by_name_or_guessed(kind, names, output, guesses):
    names = names.split()
    rows = {row.name: row for row in lpt.report(lpt.convert(nn.ModuleDict({"0": kind(*names)}), "dsv3")).rows}
    assert [name.removeprefix("0.") for name, row in rows.items() if row.guess] == guesses
    last = "0.wo" if "wo" in names else f"0.{names[-1]}"
    assert rows[last].role == f"layers.0.{output}"


def test_a_guess_is_settled_in_one_line():
    model = lpt.convert(
        nn.ModuleDict({"0": Square("q", "x"), "1": Square("q", "x")}), roles={"*.x": "attn.wo", "*.q": "ffn.w1"}
    )
    assert [row.role for row in lpt.report(model).rows] == [
        f"layers.{b}.{r}" for b in "01" for r in ("ffn.w1", "attn.wo")
    ]
    assert not lpt.report(model).guesses
    lpt.convert(model, "float32", strict=True, roles=lambda name: "attn.wq_b")


def test_a_report_marks_guesses():
    text = str(lpt.report(lpt.convert(nn.ModuleDict({"0": Square("q")}))))
    assert "(a guess: unknown: taken for a projection before attention, as most linear layers are)" in text
    assert "roles={'0.q': ROLE}" in text


@pytest.mark.parametrize(("recipe", "model", "words"), [
    ("nvfp4", lambda: nn.Sequential(nn.Linear(32, 32)), "1 of 1 linear layers are bfloat16 on float32"),
    ("dsv3", lambda: nn.ModuleDict({"lm_head": nn.Linear(32, 8)}), "keep for head"),
])  # fmt: skip
def test_a_recipe_that_quantizes_nothing_says_so(recipe, model, words):
    with pytest.warns(UserWarning, match=words):
        converted = lpt.convert(model(), recipe)
    assert words in str(lpt.report(converted))
    with pytest.raises(ValueError, match=r"strict=True: recipe .* quantizes nothing"):
        lpt.convert(converted, recipe, strict=True)


TWO = "nn.ModuleDict({'a': nn.Linear(2, 2)})"
test_refused = refusals([
    (f"lpt.convert({TWO}, roles={{'b*': 'head'}})", UnknownNameError, r"lowprec.torch: no linear layer matches 'b\*'"),
    (f"lpt.convert({TWO}, roles={{'a': 'fnn.w1'}})", UnknownNameError, "did you mean 'layers.0.ffn.w1'"),
    (f"lpt.convert({TWO}, roles=lambda name: 5)", TypeError, "role of a must be a layer's name, got 5"),
], lambda: {"lpt": lpt, "nn": nn})  # fmt: skip

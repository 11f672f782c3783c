"""Stacks as data: TOML, what differs from a base, and addends in orders."""

import pytest
from click.testing import CliRunner

import lowprec as lp
from lowprec.cli.app import cli
from lowprec.parity.classes import with_addend
from lowprec.parity.operations import Bounded, Function, Gelu, Sigmoid
from lowprec.parity.stack import Stack, load_stack
from lowprec.parity.sums import Flash, Product, Rows, Sum
from lowprec.special.cpu import CpuGelu

TORCH = "torch_cpu"


def read(text):
    return Stack.from_toml(text, lp.stacks)


def test_a_stack_as_toml_is_the_stack():
    stack = lp.stacks[TORCH]
    again = read(stack.to_toml())
    assert again == stack
    assert [rule.source for _, rule in again.rules] == [rule.source for _, rule in stack.rules]
    assert {rule.mark for _, rule in stack.rules} == {"exact", "decided"}


def test_a_file_has_a_base_and_what_differs(tmp_path):
    (tmp_path / "mine.toml").write_text(
        f'base = "{TORCH}"\nname = "mine"\n[rules.rsqrt]\nonce = true\n[rules.mean]\norders = ["sequential"]\n'
    )
    mine, base = load_stack(str(tmp_path / "mine.toml"), lp.stacks), lp.stacks[TORCH]
    assert [name for name, rule in mine.rules if rule != base.rule(name)] == ["rsqrt", "mean"]
    assert (mine.rule("rsqrt").once, mine.rule("rsqrt").mark) == (True, "own")
    assert mine.rule("mean").with_(orders=base.rule("mean").orders, probed=True, mark="exact") == base.rule("mean")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name", "file must be TOML"),
        ("name = 3", "stack: name must be a string, got 3"),
        ('[rules.mm]\nis = "Elements"', r"rules\.mm: unknown rule 'Elements': expected one of Bounded, "),
        ('[rules.mm]\nis = "Sums"', r"rules\.mm: unknown rule 'Sums': did you mean 'Sum'"),
        (
            "[rules.mm]\nprobed = true",
            r"rules\.mm must have a class \('is'\) in a file without a base, got \['probed'\]",
        ),
        ("capability = 3", "stack: capability must be a string, got 3"),
        (f'base = "{TORCH}"\n[rules.mm]\nsource = 3', "Product: source must be a string, got 3"),
        (
            f'base = "{TORCH}"\n[rules._softmax]\nnorms = [["float32", "bfloat16", "torch_cpu_softmax"]]',
            "must be names, or pairs of a dtype and a name",
        ),
        ("rule = 1", "keys base, name, capability, source, rules, definitions, got 'rule'"),
        ("rules = 3", "rules must be tables, got 3"),
        ("[rules]\nmm = 3", r"rules\.mm must be a table, got 3"),
        ('base = "torch"', "unknown stack 'torch': did you mean 'torch_cpu'"),
        (f'base = "{TORCH}"\n[rules.mm]\norders = ["halving", "sequential"]', "rule unless probed, got 2 rules"),
        ('[rules.mm]\nis = "Chain"', r"rules\.mm: unknown rule 'Chain'"),
        (f'base = "{TORCH}"\n[rules.rsqrt]\nonc = true', "unknown field 'onc' of ReciprocalRoot"),
        (f'base = "{TORCH}"\n[rules.mm]\norders = ["mkl"]', "unknown order 'mkl': did you mean 'mkl_sgemm'"),
        (f'base = "{TORCH}"\n[rules.mm]\norders = "mkl"', "orders must be a list of names, got 'mkl'"),
        (f'base = "{TORCH}"\n[rules.erf]\nonce = true', "unknown operation 'erf'"),
        (f'base = "{TORCH}"\n[rules.sin]\nmark = "best"', "mark must be one of 'exact', 'decided', 'own', got 'best'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text, message):
    with pytest.raises(ValueError, match=message):
        read(text)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda: Product(), "Product: orders must be rules of orders"),
        (lambda: Product(("mkl_sgemm",)), r"Product: orders must be rules .* got \('mkl_sgemm',\)"),
        (lambda: Sum(), "Sum: orders must be rules of orders"),
        (lambda: Rows(), "Rows: norms must be pairs of a dtype and an object of class Norm"),
        (lambda: Flash(), "Flash: kernels must be pairs of a dtype and an object of class AttentionKernel"),
        (lambda: Gelu(vector="aten", scalar=CpuGelu("glibc")), "Gelu: vector, .* must be of class CpuGelu, got 'aten'"),
        (lambda: Sigmoid(exp="exp"), "Sigmoid: exp must be of class CpuExp, got 'exp'"),
        (lambda: Function(function="exp"), "Function: function must be of class RoundedFunction, got 'exp'"),
        (lambda: Bounded("nonsense"), "function must be a NumPy ufunc of one argument, got 'nonsense'"),
        (lambda: Bounded(ulps="many"), "ulps must be"),
        (lambda: Bounded(ulps=-1), "ulps must be"),
    ],
)
def test_a_rule_that_could_not_be_used_is_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        rule()


def test_an_operation_of_any_name_is_read_back():
    stack = lp.stacks[TORCH]
    mine = stack.with_rules("mine", {"my op": stack.rule("mm")})
    assert read(mine.to_toml()) == mine


def test_a_kernel_with_another_definition_is_refused():
    text = lp.stacks[TORCH].to_toml()
    start = text.index('"torch_cpu_sum" = "') + 19
    with pytest.raises(ValueError, match="order 'torch_cpu_sum' has changed since the file was written"):
        read(text[:start] + "0" * 12 + text[start + 12 :])


@pytest.mark.parametrize("after", [1, 2, 5])
@pytest.mark.parametrize("name", ["sequential", "halving"])
def test_an_addend_joins_the_sum_that_has_so_many_elements(name, after):
    order = lp.orders[name](8)
    found = with_addend(order, after)
    assert found.n == 9
    x = [2.0**30] + [1.0] * 7 + [-(2.0**30)]  # ones are lost until the addend cancels the first element
    sums = {"sequential": {1: 7, 2: 6, 5: 3}, "halving": {1: 7, 2: 6, 5: 4}}  # halving: sums of 1, 2, 4 and 8
    assert found.sum(x) == sums[name][after]


def test_the_command_lists_rules_and_writes_toml():
    def run(*words):
        return CliRunner().invoke(cli, ["stacks", *words]).output

    listed = [line.split(",") for line in run(TORCH, "--csv").splitlines()]
    assert [row[2] for row in listed if row[0] in ("rsqrt", "tanh")] == ["exact", "decided"]
    assert read(run(TORCH, "--toml")) == lp.stacks[TORCH]
    assert "NAME must be given with --toml" in run("--toml")

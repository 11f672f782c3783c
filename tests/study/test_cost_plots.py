"""Accuracy against cost: bits from their definition, and the figure's numbers are the summary's."""

import csv
import itertools
import math
from dataclasses import asdict, replace

import pytest
from contract import branches
from refusals import refusals
from toys import SMALL, summarize

from lowprec.moe.model.config import configs
from lowprec.recipe import recipes
from lowprec.study import Arm
from lowprec.study.analysis.recipe_bits import COSTS, bits_of, multiply_adds
from lowprec.study.branches import figures, report
from lowprec.study.report.sheet import Figure
from lowprec.study.report.tradeoff import Point, differing, draw_tradeoff, front, height_of, on_front
from lowprec.study.run.store import read_json

NANO = configs["nano"]


def bits(recipe, config=NANO):
    return bits_of(recipe.as_dict(), asdict(config))


# --- bits ------------------------------------------------------------------------------------------------------------


def test_bits_of_bf16():
    """Everything has 16 bits but dy of the gate, which is float32: two operands of six."""
    gate = 2 * NANO.dim * NANO.experts / sum(multiply_adds(NANO).values())
    assert bits(recipes["bf16"]) == {
        "operands": pytest.approx(16 * (1 - gate) + gate * (4 * 16 + 2 * 32) / 6),
        "wires": 16.0, "kept": 16.0, "states": 64.0,
    }  # fmt: skip


def test_bits_of_dsv3_layer_by_layer():
    """Counted by hand for nano, one block without experts; tiles of experts and of wo have scales of 8 bits."""
    d, w, heads, experts = 128, 128, 2 * 64, 2
    tile, pow2, block = 8 + 32 / 128, 8 + 8 / 128, 8 + 32 / 128**2
    plain = (4 * tile + 2 * block) / 6
    up, down = (2 * pow2 + 2 * tile + 2 * block) / 6, (2 * tile + 2 * pow2 + 2 * block) / 6
    attention = d * 128 + 128 * 2 * 96 + d * 160 + 128 * 2 * 128
    work = [(3 * attention + 3 * d * 384 + 2 * 3 * d * w, plain)]
    work += [(3 * heads * d, up), (2 * experts * 2 * d * w, up), (2 * experts * d * w, down)]
    work += [(2 * d * 8, (4 * 16 + 2 * 32) / 6), (256 * d, 16.0)]
    mean = sum(n * b for n, b in work) / sum(n for n, _ in work)
    found = bits(recipes["dsv3"])
    assert found["operands"] == pytest.approx(mean, rel=1e-12)
    assert found["wires"] == pytest.approx((2 * 16 + 2 * pow2) / 4)
    kept = (3 * heads * (12 + 8 / 128), 2 * (384 + 2 * (experts + 1) * w) * tile)
    assert found["kept"] == pytest.approx(sum(kept) / (3 * heads + 2 * (384 + 2 * (experts + 1) * w)))


def test_every_choice_is_counted_where_it_is_made():
    bf16, nvfp4, dsv3 = (recipes[name] for name in ("bf16", "nvfp4", "dsv3"))
    assert bits(dsv3)["operands"] > bits(dsv3.with_(quantize=["head"]))["operands"]
    whole = nvfp4.with_(quantize=["layers.-1.attn.w*", "layers.-1.ffn.[!g]*"])
    assert bits(nvfp4)["operands"] > bits(whole)["operands"] > 4.0
    assert bits(bf16.with_(combine="logfmt8"))["wires"] < 16.0
    narrow, wide = (bits(bf16.with_(saved_swiglu_input=name))["kept"] for name in ("mxfp4_floor", "fp8_1x128"))
    assert narrow < wide
    assert bits(bf16.with_(master_weights="e4m3fn tensor", moments="float32"))["states"] == 8 + 32 + 32
    assert bits(bf16.with_(moment_m="float64"))["states"] == 32 + 64 + 16
    assert {name for name, value in bits(bf16).items() if value != bits(bf16.with_(dy="e5m2"))[name]} == {"operands"}


def test_experts_count_as_often_as_they_are_used_and_the_head_twice_with_two_losses():
    work = multiply_adds(NANO)
    assert work["layers.1.ffn.experts.7.w2"] == 128 * 128 * 2 / 8
    assert multiply_adds(replace(NANO, mtp_depth=1))["head"] == 2 * work["head"]
    assert "embed" not in work


@pytest.mark.parametrize("recipe", recipes.names())
def test_every_recipe_of_the_catalogue_has_a_cost(recipe):
    assert all(0 < value <= 192 for value in bits(recipes[recipe]).values())


# --- points ----------------------------------------------------------------------------------------------------------


def point(arm, operands, value, wires=16.0):
    return Point(arm, {"operands": operands, "wires": wires, "kept": 16.0, "states": 64.0}, value, "#000000")


def test_panels_are_of_what_differs():
    assert differing([point("a", 16.0, 0.0), point("b", 8.0, 0.0)], COSTS) == ["operands"]
    assert differing([point("a", 16.0, 0.0), point("b", 8.0, 0.0, 12.0)], COSTS) == ["operands", "wires"]
    assert differing([point("a", 16.0, 0.0), point("b", 16.0, 1.0)], COSTS) == []
    assert differing([], COSTS) == []


def test_the_front_holds_what_nothing_beats_in_both():
    points = [point("cheap", 4.0, 9.0), point("beaten", 8.0, 5.0), point("good", 8.0, 1.0), point("dear", 16.0, 2.0)]
    assert front(points, "operands") == ["cheap", "good"]
    assert front([point("gone", 4.0, math.nan), *points], "operands") == ["cheap", "good"]
    assert on_front([(1, 1), (1, 2), (2, 2), (3, 1)]) == [False, True, False, False]
    assert on_front([(1, 1), (1, 1)]) == [True, True]
    assert on_front([]) == []


# --- the figure ------------------------------------------------------------------------------------------------------


TOY = branches(Arm("boom", recipe="explodes", pairs=1), Arm("no_promotion", recipe="dsv3_no_promotion"))


@pytest.mark.slow
def test_the_csv_has_the_numbers_of_the_summary_bit_for_bit(finished, reported):
    rows = {row["arm"]: row for row in csv.DictReader((finished / "toy_cost.csv").read_text().splitlines())}
    assert list(rows) == [arm.name for arm in reported.outcome.ablation.arms]
    content = read_json(finished / "summary.json")
    for arm in content["arms"]:
        row = rows[arm["arm"]]
        if math.isnan(float(row["mean"])):
            assert arm["training_percent"] == "nan"
        else:
            for key, percent in (("mean", ""), ("ci90_low", "_ci90_low"), ("ci90_high", "_ci90_high")):
                assert 100 * float(row[key]) == float(arm[f"training{percent}_percent"])
        assert {name: float(row[name]) for name in COSTS if row[name]} == (arm["bits"] or {})
    assert float(rows["dsv3"]["operands"]) == bits(recipes["dsv3"])["operands"]
    assert float(rows["bf16"]["states"]) == content["reference"]["bits"]["states"]


def test_the_points_are_the_rows(reported):
    study = reported.outcome
    points = {point.name: point for point in figures.points_of(study)}
    assert set(points) == {"bf16", "dsv3", "fp4_naive", "no_promotion"}  # boom has no cost
    assert points["bf16"].value == 0.0
    own, point = study.arm("dsv3").primary, points["dsv3"]
    assert (point.value, *point.interval) == (100 * own.mean, 100 * own.ci90[0], 100 * own.ci90[1])


def test_the_figure_and_what_has_no_cost_are_in_the_report(finished, reported):
    told = "Without a cost, since the recipe does not name all its formats: boom."
    finding = "Accuracy against cost: dsv3 is the cheapest arm within the margin (8.5 bits an operand, bf16 16)"
    assert figures.note(reported.outcome) == told
    assert figures.cost(reported.outcome).title == finding
    assert f"![{finding}](toy_cost.png)\n\n{told}\n" in (finished / "report.md").read_text()
    page = (finished / "report.html").read_text()
    assert told in page
    assert 'aria-label="Accuracy against cost: ' in page


@pytest.mark.slow
def test_a_diverged_arm_has_no_value_and_is_drawn(reported, tmp_path):
    study = reported.outcome
    known = replace(study, recipes={**study.recipes, "boom": recipes["nvfp4"].as_dict()})
    found = {point.name: point for point in figures.points_of(known)}["boom"]
    assert math.isnan(found.value)
    assert all(path.stat().st_size > 300 for path in figures.cost(known).write(tmp_path))
    assert figures.note(known) == ""


def test_arms_that_cost_the_same_have_no_figure_and_the_report_says_so(finished, tmp_path):
    study = summarize(finished)
    same = replace(study, recipes=dict.fromkeys(study.recipes, recipes["bf16"].as_dict()))
    (tmp_path / "toy_cost.svg").write_text("of an earlier report")
    assert [path.name for path in figures.cost(same).write(tmp_path)] == ["toy_cost.csv"]
    assert not (tmp_path / "toy_cost.svg").exists()
    text = report.results(same).markdown()
    assert "Accuracy against cost is not drawn: all arms spend the same (16 bits of a multiplied operand, " in text


def test_a_tail_of_a_branch_is_counted(finished):
    study = summarize(finished)
    tailed = {**recipes["nvfp4"].as_dict(), "tail": {"from_step": 15, "recipe": recipes["bf16"].as_dict()}}
    found = figures.costs(replace(study, recipes={**study.recipes, "dsv3": tailed}))["dsv3"]
    assert study.setting.branch_steps == SMALL.branch_steps == 20
    expected = 0.75 * bits(recipes["nvfp4"])["operands"] + 0.25 * bits(recipes["bf16"])["operands"]
    assert found["operands"] == pytest.approx(expected)


@pytest.fixture
def drawn(tmp_path):
    """Draw points as a figure of a report; return matplotlib's figure and panels."""

    def draw(points, costs):
        found = []

        def panels(sheet, top):
            words = {cost: COSTS[cost] for cost in costs}
            found.append(draw_tradeoff(sheet, top, points, words, "loss", lambda axes: axes.set_ylim(-1.0, 10.0)))

        Figure("A finding", "toy", [{"a": 1}], panels, "Its size", height_of(costs)).write(tmp_path)
        figure = found[0][0].figure
        figure.canvas.draw()
        return figure, found[0]

    return draw


@pytest.mark.slow
@pytest.mark.parametrize("costs", [["operands"], ["operands", "wires"], ["operands", "wires", "kept"], [*COSTS]])
def test_names_stand_apart_and_inside(drawn, costs):
    """Nine arms in one place, and one far away: no name lies over another, or over a point, or runs out."""
    crowd = [point(f"{i}_with_a_name", 8.0, 1.0 + 0.01 * i) for i in range(9)]
    points = [*crowd, point("bf16", 16.0, 0.0), point("boom", 4.0, math.nan)]
    figure, panels = drawn(
        [replace(item, costs=dict.fromkeys(COSTS, item.costs["operands"])) for item in points], costs
    )
    assert len(panels) == len(costs)
    for axes in panels:
        boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
        assert set(boxes) == {*(item.name for item in crowd), "bf16", "boom (diverged)"}
        for (_, one), (_, other) in itertools.combinations(boxes.items(), 2):
            assert not one.overlaps(other)
        edge = figure.bbox
        assert all(edge.x0 <= box.x0 and box.x1 <= edge.x1 and edge.y0 <= box.y0 for box in boxes.values())
    centres = [axes.get_window_extent() for axes in panels]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(centres, 2))


def test_a_crowd_of_names_is_led_to_its_points(drawn):
    _, (axes,) = drawn([point(f"arm{i}", 8.0, 1.0) for i in range(5)] + [point("bf16", 16.0, 0.0)], ["operands"])
    leads = [line for line in axes.lines if line.get_linewidth() == 0.6]
    assert len(leads) == 3  # one name to the right, one to the left, the others further off


def test_a_bar_spans_the_interval_and_a_divergence_is_a_cross_at_the_top(drawn):
    one = replace(point("dsv3", 8.0, 1.0), interval=(0.5, 1.5))
    _, (axes,) = drawn([one, point("boom", 4.0, math.nan), point("bf16", 16.0, 0.0)], ["operands"])
    assert [list(line.get_ydata()) for line in axes.lines if line.get_linewidth() == 2.0] == [[0.5, 1.5]]
    (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
    assert list(cross.get_xdata()) == [4.0]
    assert cross.get_transform() == axes.get_xaxis_transform()


test_refused = refusals([
    ("bits_of({'name': 'mine'}, asdict(NANO))", KeyError, "'linear'"),
    ("bits_of(recipes['bf16'].as_dict(), {'name': 'mine', 'dim': 128})", KeyError, "'layers'"),
], lambda: globals())  # fmt: skip

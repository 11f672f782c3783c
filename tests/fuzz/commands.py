"""Command lines, drawn from the commands' own options, and files that are not what they should be."""

import click
import hostile_files
import numpy as np
from draw import Draw

import lowprec as lp

#: Commands that would train, measure for long or install packages, if nothing were wrong with what they are given.
LONG = {"train", "ablate", "bench", "board", "selftest", "warm"}
#: Options that make a command's work long, with values that do not.
SHORT = {"rows": "4", "columns": "128", "steps": "1"}

#: Catalogues by what options and arguments that take their names are called.
NAMES = {
    "target": lp.formats, "quantizer": lp.quantizers, "accumulator": lp.accumulators, "recipe": lp.recipes,
    "recipes": lp.recipes, "dispatch": lp.codecs, "combine": lp.codecs, "kv": lp.codecs, "names": lp.costs.models,
    "machine": lp.costs.hardware, "config": lp.configs, "rounding": lp.roundings, "policy": lp.policies,
    "formats": lp.codecs, "recompute": lp.configs,
}  # fmt: skip
OF_COMMAND = {name: getattr(lp, name) for name in ("formats", "accumulators", "quantizers", "recipes")}
WORDS = {"granularity": ("1x128", "row", "tensor", "128x128", "1x32"), "dist": ("gauss", "laplace", "all", "t3"),
         "promote_every": ("auto", "none", "128", "32")}  # fmt: skip
GOOD = ("x.npy", "y.npy", "big.npy", "nan.npy")
BAD = (
    "missing.npy", "folder", "empty.npy", "cut.npy", "huge.npy", "noise.npy", "objects.npy", "complex.npy", "text.npy",
    "none.npy", "flat.npy", "deep.npy", "wide.npz", "no_member.npz", "lies.npz", "encrypted.npz", "cut.npz", "x.toml",
    "bad.toml", "deep.toml", "latin.toml", "syntax.py", "\0", "", "n" * 300, "-", "x.npy/inside", "loop",
)  # fmt: skip


def write_files(folder):
    """Write what commands are given."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 128), np.float32)
    for name, array in {
        "x": x, "y": x[::-1], "big": x * np.float32(1e30), "nan": np.where(x > 2, np.nan, x), "objects": None,
        "complex": x + 1j, "text": np.array([["a"]]), "none": x[:0], "flat": x[0], "deep": x[None, None],
    }.items():  # fmt: skip
        np.save(folder / f"{name}.npy", np.full((2, 2), None) if array is None else array, allow_pickle=True)
    (folder / "empty.npy").write_bytes(b"")
    (folder / "cut.npy").write_bytes(hostile_files.GOOD[: len(hostile_files.GOOD) // 2])
    (folder / "noise.npy").write_bytes(rng.bytes(999))
    (folder / "huge.npy").write_bytes(hostile_files.npy(hostile_files.of_shape("(131072, 131072)")))  # 64 GiB
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    q = lp.quantize(x, "e4m3fn 1x128")
    q.save(folder / "q.npz")
    np.savez(folder / "codes.npz", codes=q.codes, scale=q.scale)
    np.savez(folder / "wide.npz", codes=q.codes[:, :5], scale=q.scale)
    np.savez(folder / "no_member.npz", other=x)
    bad = hostile_files.bombs(("codes", "scale", "header"), hostile_files.GOOD)
    for name, what in {"cut": "cut", "encrypted": "encrypted", "lies": "noise in members"}.items():
        (folder / f"{name}.npz").write_bytes(bad[what])
    (folder / "x.toml").write_text(lp.recipes["dsv3"].to_toml())
    (folder / "bad.toml").write_text('name = "bad"\nlayers = -1\nrules = 7\n')
    (folder / "deep.toml").write_bytes(b"a = " + b"[" * 5000)
    (folder / "latin.toml").write_bytes(b'name = "\xe9"')
    (folder / "syntax.py").write_text("def (:\n")


class Lines:
    """Draws command lines of one command."""

    def __init__(self, name, command):
        self.name, self.command = name, command

    def draw(self, draw: Draw) -> list[str]:
        """Return arguments; what would take long has something wrong with it."""
        words = self.name.split()
        for parameter in self.command.params:
            if isinstance(parameter, click.Argument):
                count = draw.one(0, 1, 3) if parameter.nargs == -1 else 1
                wanted = parameter.required or draw.chance(0.7)
                words += [self.value(parameter, draw) for _ in range(count if wanted else 0)]
            elif draw.chance(0.25) or parameter.required or (self.name == "cast" and parameter.name == "target"):
                option = draw.of(parameter.opts)
                words += [option] if parameter.is_flag else [option, self.value(parameter, draw)]
            elif parameter.name in SHORT and not parameter.is_flag:
                words += [parameter.opts[0], SHORT[parameter.name]]
        if words[0] in LONG:
            words += [draw.one("--no-such-option", "--seed=-1", "--data=missing", "--config=none", "--jobs=x", "extra")]
        if draw.chance(0.05):
            words.append(draw.one("--", "--help", "-", "--json", "--csv", "é", "--out="))
        return words

    def value(self, parameter, draw: Draw) -> str:
        name, kind = parameter.name, parameter.type
        if name in ("out", "svg", "write_probes", "write_recorder", "disclosure"):
            return draw.one("out/new", "out/new", "folder", "missing/new", "/dev/null", "", "out/" + "n" * 300)
        if isinstance(kind, click.Choice):
            return draw.one(draw.of(kind.choices), draw.of(kind.choices), "no such")
        if name in SHORT and draw.chance(0.7):
            return SHORT[name]
        if kind.name in ("integer", "integer range"):
            long = name in ("rows", "columns", "rounds", "warmup")
            return draw.one("1", "64", "0", "-1", "x", *(() if long else ("8", "4", "1.5", str(2**40), str(2**70), "")))
        if kind.name == "float":
            return draw.one("0.5", "1e-3", "0", "-1", "nan", "inf", "x", "1e999")
        if "file" in name or (name in ("values", "path") and self.name != "cast"):
            if self.name == "check" and name == "file" and draw.chance(0.8):
                return draw.one("q.npz", "codes.npz")
            return draw.of(GOOD) if draw.chance(0.75) else draw.one(draw.of(BAD), "q.npz", "codes.npz")
        if self.name == "cast" and name == "values":
            no_number = "x" if draw.chance(0.1) else "5"
            return draw.one("1", "-0.3", "0.1", "448", "nan", "inf", "1e400", no_number, "1e-9", "1_000")
        if name in WORDS and draw.chance(0.7):
            return draw.of(WORDS[name])
        catalogue = OF_COMMAND.get(self.name, NAMES.get(name)) if name in (*NAMES, "name") else None
        if catalogue is not None and draw.chance(0.7):
            return draw.of(catalogue.names())
        return draw.one(
            draw.of(lp.formats.names()), draw.of(lp.quantizers.names()), draw.of(lp.codecs.names()), "1x128", "all",
            "no such", "1x0", "9" * 40 + "x1", "auto", "none", "16", draw.of(BAD),
        )  # fmt: skip


def lines(group, prefix=""):
    """Return what draws lines of each command, commands of groups included."""
    found = []
    for name, command in sorted(group.commands.items()):
        whole = f"{prefix}{name}"
        found += lines(command, f"{whole} ") if isinstance(command, click.Group) else [Lines(whole, command)]
    return found

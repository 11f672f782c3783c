"""Every mistake gets one clear line and exit code 2, and leaves nothing behind."""

import os

import numpy as np
import pytest
from command_line import refused

import lowprec as lp

TRAIN = "train --config small.toml --data text.txt --steps 4 --out out"
MISTAKES = [
    ("abalte", "No such command 'abalte'"),
    ("--jsn", "(see lowprec --help)"),
    ("bench tran", "(see lowprec bench --help)"),
    ("bench train --recipe bf61 --config small.toml", "did you mean 'bf16'"),
    ("bench train --json --csv --config small.toml", "--json and --csv exclude each other"),
    ("bench memory --policy norm --config small.toml", "did you mean 'norms'"),
    ("bench memory --recipe dsv3 --config ragged.toml", "the 100 inputs of layers.0.attn.wkv_b are not whole tiles"),
    ("ablate fp8_vs_fb16", "unknown ablation 'fp8_vs_fb16': did you mean 'fp8_vs_bf16'?"),
    ("ablate nowhere.py", "no such ablation file: 'nowhere.py'"),
    ("ablate open.py --list", "open.py, line 1"),
    ("ablate --set branch_step=3", "unknown setting 'branch_step': did you mean 'branch_steps'"),
    ("ablate --set branch_steps", "--set branch_steps: KEY=VALUE is needed"),
    ("ablate --set branch_steps=-1", "branch_steps=-1: a whole number from 1 to 1000000000 is needed"),
    ("ablate --set learning_rate=inf", "learning_rate=inf: a finite number > 0 is needed"),
    ("ablate --set config=nanu", "unknown model configuration 'nanu'"),
    ("ablate scaling --set cells=nano", "cells='nano': 'nano' is no cell; there are nano-300-stdlib"),
    ("ablate wire_cost --plan", "only studies that train arms (T3, T4) are planned"),
    ("ablate --seeds 0", "0 is not in the range x>=1"),
    ("ablate --jobs two", "'two' is not a valid integer"),
    ("ablate --data missing.txt", "missing.txt': no such file"),
    ("ablate --quick --data empty.txt --out out", "empty.txt' is empty; at least 131072 bytes are needed"),
    ("ablate --quick --data short.txt --out out", "short.txt' is too short: 9 bytes, at least 131072 are needed"),
    ("report nowhere", "nowhere: no such folder"),
    ("report .", "holds no study"),
    ("train --steps 1 --out run --json --csv", "--json and --csv exclude each other"),
    ("train --steps 0", "0 is not in the range x>=1"),
    (f"train --config nano --steps {2**64}", f"steps={2**64}: a whole number from 1 to 1000000000"),
    ("train --recipe dsv33", "unknown recipe 'dsv33': did you mean 'dsv3'"),
    ("train --config nanu", "unknown model configuration 'nanu': did you mean 'nano'"),
    ("train --config nano --learning-rate nan", "learning_rate=nan: a finite number > 0"),
    ("train --memory dsv33", "unknown memory policy 'dsv33': did you mean 'dsv3'"),
    ("train --memory all", "unknown memory policy 'all': known: keep, norms, up_projections"),
    ("train --data missing.txt", "missing.txt': no such file"),
    ("train --config small.toml --data text.txt --resume", "--resume needs --out, the folder to go on from"),
    (f"{TRAIN} --ema 1", "decay of the mean weights 1.0"),
    (f"{TRAIN} --ema nan", "decay of the mean weights nan"),
    (f"{TRAIN} --schedule cosine", "schedule kind 'cosine': known are constant, linear_to_zero"),
    (f"{TRAIN} --recipe no_toml.toml", "no_toml.toml': recipe: this is no TOML"),
    (f"{TRAIN} --recipe typo.toml", "typo.toml': unknown entry of recipe 'dispach': did you mean 'dispatch'"),
    (f"{TRAIN} --recipe layers.toml", "layers.toml': pattern 'layers.*.ffn.gat' matches no layer"),
    (f"{TRAIN} --recipe deep.toml", "'layers.9.*' names a block that a model of 2 layers lacks"),
    ("recipes dsv33", "unknown recipe 'dsv33': did you mean 'dsv3'"),
    ("recipes --toml", "--toml needs the name of a recipe"),
    ("recipes dsv3 --json --csv", "--json and --csv exclude each other"),
    ("recipes dsv3 --json --toml", "--toml and --json or --csv exclude each other"),
    ("formats e4m3fx", "unknown format 'e4m3fx': did you mean 'e4m3fn'"),
    ("formats --grid", "--grid needs a format"),
    ("formats float16 --grid", "--grid is for formats of at most 8 bits, float16 has 16"),
    ("formats --json --csv", "--json and --csv exclude each other"),
    ("cast 0.1 --to e4m3fx", "unknown format 'e4m3fx'"),
    ("cast 0.1.2 --to e4m3fn", "'0.1.2' is not a number"),
    ("cast --to e4m3fn", "Missing argument"),
    ("cast 1", "--to FORMAT is needed"),
    ("cast 1 --too e4m3fn", "no such option: '--too'"),
    ("cast 1e400 --to e4m3fn", "'1e400' does not fit float64"),
    ("cast 0x1p5000 --to e4m3fn", "'0x1p5000' does not fit float64"),
    ("quantizers nvfp5_te", "unknown quantizer 'nvfp5_te': did you mean 'nvfp4_te'"),
    ("accumulators hoper_fp8", "unknown accumulator 'hoper_fp8': did you mean 'hopper_fp8'"),
    ("costs nodes --dim 7", "--dim changes nothing in the table nodes; it is for wire"),
    ("costs wire --tokens 0", "0 is not in the range x>=1"),
    ("error unusual.npy --format bf16", "unusual.npy: errors_of: 1 of 12 values are NaN"),
    ("error cut.npz", "not a .npy file of numbers"),
    ("check text.npy --values x.npy", "text.npy: not an .npz with the arrays codes and scale"),
    ("check x.npy --values x.npy", "as lowprec quantize --out writes it: a single array"),
    ("check scales.npz --values x.npy", "scales.npz: it holds scale; an .npz with"),
    ("check floats.npz --values x.npy", "floats.npz: codes are float64, uint8"),
    ("convert plain.npz --to e4m3fn", "--from and --from-granularity are needed"),
    ("quantize cut.npz", "not a .npy file of numbers"),
    ("quantize empty.npy", "the array is empty"),
    ("quantize cube.npy", "2 dimensions are needed"),
    ("quantize wide.npy", "2 values do not fit float32, the first is -1e+300"),
    ("quantize untyped.npy", "this holds |V2, bytes without a type"),
    ("quantize x.npy 1x7x3", "unknown word '1x7x3' in '1x7x3'"),
    ("quantize x.npy 0x1", "granularity='0x1': rows x columns such as"),
    (f"quantize x.npy 1x{10**20}", f"columns={10**20}: a whole number from 1 to 2147483647"),
    (f"quantize x.npy {10**20}x1", f"rows={10**20}: a whole number from 1 to 2147483647"),
    ("quantize x.npy e4m3fx", "unknown word 'e4m3fx'"),
    ("quantize x.npy --out nowhere/q.npz", "nowhere/q.npz: the folder"),
    ("gemm x.npy other.npy", "K differs"),
    ("gemm x.npy cut.npz", "not a .npy file of numbers"),
    ("gemm x.npy x.npy --accumulator hooper_fp8", "did you mean 'hopper_fp8'"),
    ("gemm x.npy x.npy --promote-every -3", "promote_every=-3: a whole number >= 1 or None"),
    ("gemm x.npy x.npy --promote-every never", "never: a whole number, auto or none"),
    ("gemm x.npy x.npy --format bfloat16 --promote-every 128", "bfloat16 has no scales"),
    ("gemm x.npy x.npy --quantizer mxfp8 --promote-every 128", "take such scales inside: blackwell_mxf8"),
    ("logfmt unusual.npy", "unusual.npy: NaN or Inf at [1, 2]; --nonfinite poison"),
    ("logfmt text.npy", "not a .npy file of numbers"),
    ("logfmt words.npy", "a .npy file of real numbers is needed"),
    ("logfmt x.npy --bits 77", "bits=77: a whole number from 3 to 16"),
    ("logfmt x.npy --tile 0", "tile=0: a whole number from 1 to 2147483647"),
    (f"logfmt x.npy --tile {2**40}", "tile=1099511627776: a whole number from 1 to 2147483647"),
    (f"logfmt x.npy --tile {'9' * 40} --out z", "a whole number from 1 to 2147483647"),
    ("logfmt x.npy --tile 1.5", "'1.5' is not a valid integer"),
    ("logfmt x.npy --mode deepep --bits 8", "mode 'deepep' is what it is, with bits 10"),
    ("logfmt x.npy --rounding up", "'up' is not one of"),
    ("mma a.npy", "a single array"),
    ("mma scales.npz", "needs the arrays a and b"),
    ("mma noise.txt", "not an .npz of arrays"),
    ("mma a.txt noise.txt", "hexadecimal"),
    ("mma 0x38 0x3x", "hexadecimal"),
    ("mma 0x38,38/38 0x38", "one length"),
    ("mma 0x38,38 0x38", "K differs"),
    ("mma 0x38 0x38 0x3f800000 --accumulator hopper_fp8_f16", "words of 32 bits"),
    ("mma 0x38 0x38 --accumulator none", "unknown accumulator"),
    ("mma flat.npy flat.npy", "shape"),
    ("mma x.npy a.npy", "unsigned integers"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of the files that the table names."""
    folder = tmp_path_factory.mktemp("mistakes")
    x = np.random.default_rng(0).standard_normal((32, 256)).astype(np.float32)
    ones, codes = np.ones((4, 64), np.float32), np.full((3, 64), 0x38, np.uint8)
    arrays = {
        "x": x, "words": np.array(["a", "b"]), "other": np.ones((4, 255), np.float32), "empty": ones[:0],
        "cube": np.ones((2, 2, 2), np.float32), "wide": np.array([[1.0, -1e300, 1e300, np.inf]]),
        "untyped": np.ones((2, 2), lp.formats["bfloat16"].code_dtype).view("V2"), "a": codes, "flat": codes[0],
        "unusual": np.where(np.arange(12) == 6, np.nan, 1.0).reshape(3, 4),
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "scales.npz", scale=np.ones((1, 1)))
    np.savez(folder / "floats.npz", codes=np.ones((32, 256)), scale=np.ones((32, 2)))
    np.savez(folder / "plain.npz", codes=codes, scale=np.ones((3, 2), np.float32))
    (folder / "cut.npz").write_bytes((folder / "plain.npz").read_bytes()[:100])
    small = 'base = "nano"\nlayers = 2\ndense_layers = 1\nexperts = 4\nbatch = 2\nsequence = 64\n'
    texts = {
        "text.npy": "hello", "empty.txt": "", "short.txt": "too short", "noise.txt": "no words",
        "a.txt": "38 38", "text.txt": "one two three four\n" * 10_000, "open.py": "ablation = (\n",
        "small.toml": small, "ragged.toml": f"{small}kv_rank = 100\n", "no_toml.toml": "name = ",
        "typo.toml": 'base = "dsv3"\ndispach = "bf16"\n', "deep.toml": 'base = "dsv3"\nprotect = "layers.9.*"\n',
        "layers.toml": 'base = "dsv3"\n[layers."layers.*.ffn.gat"]\nout = "float32"\n',
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("line", "match"), MISTAKES, ids=[line[:60] for line, _ in MISTAKES])
def test_mistakes_get_one_line_and_leave_nothing(line, match, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(os.listdir())
    refused(*line.split(), match=match)
    assert sorted(os.listdir()) == before

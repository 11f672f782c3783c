"""Every mistake gets one clear line and exit code 2, and leaves nothing behind."""

import os

import numpy as np
import pytest
from command_line import refused

import lowprec as lp

TRAIN = "train --config small.toml --data text.txt --steps 4 --out out"
MISTAKES = [
    ("abalte", "unknown command 'abalte': did you mean 'ablate'"),
    ("--jsn", "(see lowprec --help)"),
    ("bench tran", "(see lowprec bench --help)"),
    ("bench train --recipe bf61 --config small.toml", "did you mean 'bf16'"),
    ("bench train --json --csv --config small.toml", "--json and --csv are mutually exclusive"),
    ("bench memory --recompute norm --config small.toml", "did you mean 'norms'"),
    (
        "bench memory --recipe dsv3 --config ragged.toml",
        "configuration 'ragged' with recipe 'dsv3': inputs of layers.0.attn.wkv_b must be a",
    ),
    ("ablate fp8_vs_fb16", "unknown ablation 'fp8_vs_fb16': did you mean 'fp8_vs_bf16'?"),
    ("ablate nowhere.py", "ablation file 'nowhere.py' does not exist"),
    ("ablate open.py --list", "open.py, line 1: SyntaxError: '(' was never closed"),
    ("ablate raises.py", "raises.py, line 2: ZeroDivisionError: division by zero"),
    ("ablate ends.py", "ends.py, line 1: SystemExit: 3"),
    ("ablate lacks.py", "lacks.py, line 1: ModuleNotFoundError: No module named 'nowhere'"),
    ("ablate --set branch_step=3", "unknown setting 'branch_step': did you mean 'branch_steps'"),
    ("ablate --set branch_steps", "--set must be KEY=VALUE, as in --set branch_steps=80, got 'branch_steps'"),
    ("ablate --set branch_steps=-1", "branch_steps must be an integer from 1 to 1000000000, got -1"),
    ("ablate --set learning_rate=inf", "learning_rate must be a finite number > 0, got inf"),
    ("ablate --set config=nanu", "unknown model configuration 'nanu'"),
    ("ablate scaling --set cells=nano", "cells='nano': unknown cell 'nano': expected one of nano-300-stdlib,"),
    ("ablate wire_cost --plan", "--plan is for studies that train arms (T3, T4); the others take seconds to minutes"),
    ("ablate --seeds 0", "--seeds must be >=1, got 0"),
    ("ablate --jobs two", "--jobs must be a valid integer, got 'two' (see lowprec ablate --help)"),
    ("ablate --data missing.txt", "corpus must be 'stdlib', 'bible', 'synthetic' or the path of a text file, got"),
    ("ablate --quick --data empty.txt --out out", "must have at least 131072 bytes, got 0"),
    ("ablate --quick --data short.txt --out out", "must have at least 131072 bytes, half of them held out, got 9"),
    ("report nowhere", "RUNS must be folders, got 'nowhere', which is not one"),
    ("report .", "holds no study"),
    ("train --steps 1 --out run --json --csv", "--json and --csv are mutually exclusive"),
    ("train --steps 0", "--steps must be >=1, got 0"),
    (f"train --config nano --steps {2**64}", f"steps must be an integer from 1 to 1000000000, got {2**64}"),
    ("train --recipe dsv33", "unknown recipe 'dsv33': did you mean 'dsv3'"),
    ("train --config nanu", "unknown model configuration 'nanu': did you mean 'nano'"),
    ("train --config nano --learning-rate nan", "Schedule: learning_rate must be a finite number > 0, got nan"),
    ("train --recompute dsv33", "unknown recompute policy 'dsv33': did you mean 'dsv3'"),
    ("train --recompute all", "unknown recompute policy 'all': expected one of none, norms, up_projections"),
    ("train --data missing.txt", "got 'missing.txt', which does not exist"),
    (
        "train --config small.toml --data text.txt --resume",
        "missing option --out DIR, the folder of the run to --resume",
    ),
    (f"{TRAIN} --ema 1", "ema must be a decay in [0, 1), got 1.0"),
    (f"{TRAIN} --ema nan", "ema must be a decay in [0, 1), got nan"),
    (f"{TRAIN} --schedule cosine", "unknown schedule 'cosine': expected one of constant, linear_to_zero"),
    (f"{TRAIN} --recipe no_toml.toml", "no_toml.toml': recipe is not TOML"),
    (f"{TRAIN} --recipe typo.toml", "typo.toml': unknown entry of recipe 'dispach': did you mean 'dispatch'"),
    (f"{TRAIN} --recipe layers.toml", "layers.toml': pattern 'layers.*.ffn.gat' matches no layer"),
    (f"{TRAIN} --recipe deep.toml", "pattern must name a block of a model of 2 layers, got 'layers.9.*'"),
    ("recipes dsv33", "unknown recipe 'dsv33': did you mean 'dsv3'"),
    ("recipes --toml", "missing NAME of a recipe for --toml"),
    ("recipes dsv3 --json --csv", "--json and --csv are mutually exclusive"),
    ("recipes dsv3 --json --toml", "--toml and --json or --csv are mutually exclusive"),
    ("formats e4m3fx", "unknown format 'e4m3fx': did you mean 'e4m3fn'"),
    ("formats --codes", "missing NAME of a format for --codes, as in lowprec formats e4m3fn --codes"),
    ("formats float16 --codes", "NAME must be a format of at most 8 bits with --codes, got float16 with 16"),
    ("formats --json --csv", "--json and --csv are mutually exclusive"),
    ("cast 0.1 --to e4m3fx", "unknown format 'e4m3fx'"),
    ("cast 0.1.2 --to e4m3fn", "VALUE must be a number (decimal, hexadecimal such as 0x1.8p3, inf or nan), got"),
    ("cast --to e4m3fn", "missing argument 'VALUES"),
    ("cast 1", "missing option --to FORMAT; see lowprec formats"),
    ("cast 1 --too e4m3fn", "unknown option '--too'; see lowprec cast --help"),
    ("cast 1e400 --to e4m3fn", "VALUE must be within float64, or inf, got '1e400'"),
    ("cast 0x1p5000 --to e4m3fn", "VALUE must be within float64, or inf, got '0x1p5000'"),
    ("quantizers nvfp5_te", "unknown quantizer 'nvfp5_te': did you mean 'nvfp4_te'"),
    ("accumulators hoper_fp8", "unknown accumulator 'hoper_fp8': did you mean 'hopper_fp8'"),
    ("costs nodes --dim 7", "--dim has no effect on the table nodes; it is for all-to-all"),
    ("costs all-to-all --tokens 0", "--tokens must be >=1, got 0"),
    (
        "format-errors unusual.npy --format bf16",
        "measure_errors: x must be finite, got 1 of 12 values that are NaN or infinite, the first",
    ),
    ("format-errors cut.npz", "not a .npy file of numbers"),
    ("check text.npy --values x.npy", "text.npy: not an .npz with the arrays codes and scale"),
    (
        "check x.npy --values x.npy",
        "not an .npz with the arrays codes and scale, as lowprec quantize --out or ",
    ),
    ("check scales.npz --values x.npy", "scales.npz must be an .npz with the arrays codes and scale, "),
    ("check floats.npz --values x.npy", "floats.npz: codes must be uint8"),
    (
        "convert plain.npz --to e4m3fn",
        "plain.npz does not name the format of its codes; give --from and --from-granularity",
    ),
    ("quantize cut.npz", "not a .npy file of numbers"),
    ("quantize empty.npy", "empty.npy must not be empty, got shape (0, 64)"),
    ("quantize cube.npy", "cube.npy must have 2 dimensions, got shape (2, 2, 2)"),
    ("quantize wide.npy", "wide.npy must hold numbers within float32, got 2 beyond, the first -1e+300"),
    ("quantize untyped.npy", "untyped.npy must hold real numbers, got |V2, bytes without a type: np.save forgets"),
    ("quantize x.npy 1x7x3", "unknown word '1x7x3' in '1x7x3'"),
    ("quantize x.npy 0x1", "granularity must be rows x columns such as '1x128' or (1, 128), or one of"),
    (f"quantize x.npy 1x{10**20}", f"columns must be an integer from 1 to 2147483647, got {10**20}"),
    (f"quantize x.npy {10**20}x1", f"rows must be an integer from 1 to 2147483647, got {10**20}"),
    ("quantize x.npy e4m3fx", "unknown word 'e4m3fx'"),
    ("quantize x.npy --out nowhere/q.npz", "nowhere/q.npz cannot be written: the folder"),
    (
        "gemm x.npy other.npy",
        "x.npy [M, K] and other.npy [N, K] must have the same K, got (32, 256) and (4, 255)",
    ),
    ("gemm x.npy cut.npz", "not a .npy file of numbers"),
    ("gemm x.npy x.npy --accumulator hooper_fp8", "did you mean 'hopper_fp8'"),
    ("gemm x.npy x.npy --promote-every -3", "promote_every must be an integer >= 1 or None, got -3"),
    ("gemm x.npy x.npy --promote-every never", "--promote-every must be an integer, auto or none, got 'never'"),
    (
        "gemm x.npy x.npy --format bfloat16 --promote-every 128",
        "--promote-every must be auto or none with bfloat16, which has no scales, got 128",
    ),
    ("gemm x.npy x.npy --quantizer mxfp8 --promote-every 128", "take such scales inside: blackwell_mxf8"),
    ("logfmt unusual.npy", "unusual.npy must be finite, got NaN or Inf at [1, 2]; --nonfinite poison makes the"),
    ("logfmt text.npy", "not a .npy file of numbers"),
    ("logfmt words.npy", "words.npy must hold real numbers, got <U1"),
    ("logfmt x.npy --bits 77", "bits must be an integer from 3 to 16, got 77"),
    ("logfmt x.npy --tile 0", "tile must be an integer from 1 to 2147483647, got 0"),
    (f"logfmt x.npy --tile {2**40}", "tile must be an integer from 1 to 2147483647, got 1099511627776"),
    (f"logfmt x.npy --tile {'9' * 40} --out z", f"tile must be an integer from 1 to 2147483647, got {'9' * 40}"),
    ("logfmt x.npy --tile 1.5", "--tile must be a valid integer, got '1.5' (see lowprec logfmt --help)"),
    ("logfmt x.npy --variant deepep --bits 8", "logfmt: bits must be 10 with variant='deepep', got 8"),
    ("logfmt x.npy --rounding up", "--rounding must be one of 'linear', 'log'"),
    ("mma a.npy", "a single array"),
    ("mma scales.npz", "scales.npz must have arrays a and b, and may have c, d, a_scale and b_scale, got"),
    ("mma noise.txt", "not an .npz of arrays"),
    ("mma a.txt noise.txt", "hexadecimal"),
    ("mma 0x38 0x3x", "hexadecimal"),
    ("mma 0x38,38/38 0x38", "the argument: rows must have the same number of words, got [1, 2]"),
    ("mma 0x38,38 0x38", "0x38,38, 0x38: mma: a [M, K] and b [N, K] must have the same K, got shapes (1, 2)"),
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
        "raises.py": "\n1 / 0\n", "ends.py": "raise SystemExit(3)\n", "lacks.py": "import nowhere\n",
        "small.toml": small, "ragged.toml": f"{small}kv_rank = 100\n", "no_toml.toml": "name = ",
        "typo.toml": 'base = "dsv3"\ndispach = "bf16"\n', "deep.toml": 'base = "dsv3"\nprotect = "layers.9.*"\n',
        "layers.toml": 'base = "dsv3"\n[layers."layers.*.ffn.gat"]\nout = "float32"\n',
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("line", "match"), MISTAKES, ids=[line[:60] for line, _ in MISTAKES])
def test_mistakes_get_one_line_and_leave_nothing(line, match, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(os.listdir())
    refused(*line.split(), match=match)
    assert sorted(os.listdir()) == before

"""What a combine format saves in time, and what it loses: the error of the output, and of a model's predictions."""

from lowprec.study import ErrorArm, ErrorSetting, ErrorStudy
from lowprec.study.kinds.errors.wire_cost import accuracy_against_time

ablation = ErrorStudy(
    name="wire_cost",
    question="How much accuracy does each combine format give up for its time on the wire?",
    expected="LogFMT-8 loses less than E4M3 and E5M2 tiles for the same bytes; LogFMT-10 is near BF16 for two thirds "
    "of its time; integers of as many bits do as well or better on experts' outputs, which have light tails.",
    source="Insights into DeepSeek-V3 (arXiv:2505.09343), sections 2.3.2 and 3.2",
    arms=(
        ErrorArm("bf16", "BF16", "cast"),
        *(ErrorArm(f"logfmt{n}", f"LogFMT-{n}", "LogFMT") for n in (4, 5, 6, 7, 8, 9, 10, 12)),
        ErrorArm("int4_1x128", "INT4 1x128", "INT"), ErrorArm("int8_1x128", "INT8 1x128", "INT"),
        ErrorArm("int10_1x128", "INT10 1x128", "INT"), ErrorArm("e5m2_1x128", "E5M2 1x128", "FP8 tiles"),
        ErrorArm("fp8_1x128", "E4M3 1x128", "FP8 tiles"), ErrorArm("mxfp4_floor", "MXFP4", "MX"),
        ErrorArm("mxfp6_e2m3_floor", "MXFP6 E2M3", "MX"), ErrorArm("mxfp8", "MXFP8", "MX"),
        ErrorArm("nvfp4", "NVFP4", "NVFP4"), ErrorArm("e5m6_1x128_ue8m0", "E5M6 pow2", "E5M6"),
    ),
    data=("expert",),
    quick=ErrorSetting(rows=256, columns=1024, seeds=1, training_steps=40),
    full=ErrorSetting(rows=256, columns=1024, seeds=2, training_steps=400),
    figures=(
        accuracy_against_time("", "Accuracy against the time of combine, every codec a point", model="deepseek_v3",
                              machine="h800_ib400", dispatch="fp8_1x128", config="nano"),
    ),
)  # fmt: skip

if __name__ == "__main__":
    import sys

    from lowprec.cli import main

    main(["ablate", __file__, *sys.argv[1:]])

"""The encoding "c": a header file with the vectors as arrays and an optional main that tests a function."""

from __future__ import annotations

from .vectors import Field, VectorSet

_MAIN = """
/* cc -DLOWPREC_SELF_TEST -include your_function.h -x c {file} -o test && ./test
   Your function is void LOWPREC_FUNCTION({parameters}): it fills in the results. */
#ifdef LOWPREC_SELF_TEST
#include <stdio.h>
#include <string.h>
int main(void) {{
    unsigned long wrong = 0;
    for (size_t i = 0; i < {count}; i++) {{
        {declared}
        LOWPREC_FUNCTION({arguments});
        int same = 1;
        {same}
        if (!same && wrong++ < 10) {{
            printf("vector %zu, %s:", i, {stem}_labels[{stem}_label[i]]);
            {shown}
            printf("\\n");
        }}
    }}
    printf("%lu of %lu vectors differ from %s\\n", wrong, (unsigned long){count}, "{name}");
    return wrong != 0;
}}
#endif
"""


def _type(field: Field) -> str:
    return f"uint{8 * field.dtype.itemsize}_t"


def write(s: VectorSet) -> bytes:
    """Return a set as a C header."""
    own, fields = s.stem, (*s.inputs, *s.results)
    kinds, numbers = s.numbered_labels()
    text = [s.comments("//"), f"#ifndef {own.upper()}_H\n#define {own.upper()}_H\n#include <stddef.h>\n"]
    text.append(f"#include <stdint.h>\n#define {own.upper()}_COUNT {len(s)}\n")
    for field in fields:
        rows = s[field.name].reshape(len(s), field.count).tolist()
        suffix = "ULL" if field.bits > 32 else ""
        lines = [", ".join(f"0x{field.hex(word)}{suffix}" for word in row) for row in rows]
        size = f"[{len(s)}]" + (f"[{field.count}]" if field.count > 1 else "")
        body = _wrapped(lines) if field.count == 1 else ",\n".join(f"{{{line}}}" for line in lines)
        text.append(f"static const {_type(field)} {own}_{field.name}{size} = {{\n{body}\n}};\n")
    body = _wrapped(list(map(str, numbers)))
    text.append(f"static const uint16_t {own}_label[{len(s)}] = {{\n{body}\n}};\n")
    body = ",\n".join(f'"{label}"' for label in kinds)
    text.append(f"static const char *const {own}_labels[{len(kinds)}] = {{\n{body}\n}};\n")
    text.append(_main(s, own) + "#endif\n")
    return "".join(text).encode()


def _wrapped(items: list[str]) -> str:
    return ",\n".join(", ".join(items[i : i + 12]) for i in range(0, len(items), 12))


def _main(s: VectorSet, own: str) -> str:
    parameters = [f"{_type(f)} {f.name}" if f.count == 1 else f"const {_type(f)} *{f.name}" for f in s.inputs]
    parameters += [f"{_type(f)} *{f.name}" for f in s.results]
    declared = " ".join(f"{_type(f)} {f.name}[{f.count}];" for f in s.results)
    arguments = [f"{own}_{f.name}[i]" for f in s.inputs] + [f.name for f in s.results]
    compared = "\n        ".join(_compared(f, own, s.nan == "any") for f in s.results)
    shown = "\n            ".join(
        f'for (int j = 0; j < {f.count}; j++) printf(" {f.name} %0{f.digits}llx, yours %0{f.digits}llx", '
        f"(unsigned long long)((const {_type(f)} *)&{own}_{f.name}[i])[j], (unsigned long long){f.name}[j]);"
        for f in s.results
    )
    return _MAIN.format(
        file=f"{own}.h", parameters=", ".join(parameters), count=f"{own.upper()}_COUNT", declared=declared,
        arguments=", ".join(arguments), same=compared, stem=own, shown=shown, name=s.name,
    )  # fmt: skip


def _compared(field: Field, own: str, any_nan: bool) -> str:
    """Return C code that compares the words of a field; with `any_nan`, one NaN is as good as another."""
    same = "a == b"
    if any_nan and (ranges := _nan_ranges(field)):
        a, b = (" || ".join(f"({x} >= 0x{low:x} && {x} <= 0x{high:x})" for low, high in ranges) for x in "ab")
        same += f" || (({a}) && ({b}))"
    ours = f"((const {_type(field)} *)&{own}_{field.name}[i])[j]"
    return f"""for (int j = 0; j < {field.count}; j++) {{
            unsigned long long a = {ours}, b = {field.name}[j];
            same &= {same};
        }}"""


def _nan_ranges(field: Field) -> list[tuple[int, int]]:
    """Return the first and the last word of each run of NaNs."""
    if field.format is None:
        return []
    if field.bits > 16:  # IEEE formats
        infinity, sign = ((1 << field.format.exponent_bits) - 1) << field.format.mantissa_bits, 1 << field.format.width
        return [(s + infinity + 1, s + sign - 1) for s in (0, sign)]
    nan = [word for word in range(1 << field.bits) if field.is_nan(word)]
    starts = [word for word in nan if word - 1 not in nan]
    return [(start, next(word for word in nan if word >= start and word + 1 not in nan)) for start in starts]

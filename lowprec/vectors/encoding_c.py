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
        int same = {same};
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
    compared = " && ".join(f"!memcmp({f.name}, &{own}_{f.name}[i], sizeof {f.name})" for f in s.results)
    shown = "\n            ".join(
        f'for (int j = 0; j < {f.count}; j++) printf(" {f.name} %0{f.digits}llx, yours %0{f.digits}llx", '
        f"(unsigned long long)((const {_type(f)} *)&{own}_{f.name}[i])[j], (unsigned long long){f.name}[j]);"
        for f in s.results
    )
    if s.nan == "any":
        compared = f"({compared}){''.join(_any_nan(f, own) for f in s.results)}"
    return _MAIN.format(
        file=f"{own}.h", parameters=", ".join(parameters), count=f"{own.upper()}_COUNT", declared=declared,
        arguments=", ".join(arguments), same=compared, stem=own, shown=shown, name=s.name,
    )  # fmt: skip


def _any_nan(field: Field, own: str) -> str:
    """Return C code that accepts any float32 NaN in place of another."""
    if field.bits != 32 or field.count != 1:
        return ""
    here = f"{own}_{field.name}[i]"
    return f" || (({here} & 0x7fffffff) > 0x7f800000 && ({field.name}[0] & 0x7fffffff) > 0x7f800000)"

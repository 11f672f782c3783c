"""What every call has to keep to, whatever it is given."""

import copy
import dataclasses
import inspect
import os
import signal
import struct
import types
from typing import Any

import numpy as np
from calls import Arguments, Target, call_of
from draw import Draw
from targets import RESULTS

import lowprec as lp
from lowprec.registry import Registry

#: What a caller is told by; an error of the system only where the documentation says so.
COMPLAINTS = (ValueError, TypeError, KeyError, FileNotFoundError)
LONGEST_MESSAGE = 6000
#: Of the processors, so that a machine that is busy with other work finds nothing.
SECONDS = 120


class Finding(AssertionError):
    """A call that broke a promise."""


class TooSlow(BaseException):
    """A call that did not come back in time."""


def prints(value: Any, depth: int = 0) -> Any:
    """Return something comparable that has every bit of a value."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        held = repr(value.tolist()) if value.dtype.hasobject or depth > 20 else np.asarray(value).tobytes()
        mask = bytes(np.ma.getmaskarray(value)) if isinstance(value, np.ma.MaskedArray) else b""
        return kind, repr(value.dtype), value.shape, held, mask
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if isinstance(value, float):
        return kind, struct.pack("<d", value)
    if isinstance(value, (bool, int, str, bytes, type(None), complex)):
        return kind, value
    if depth > 20 or isinstance(value, (types.ModuleType, type, Registry)) or callable(value):
        return kind
    if isinstance(value, Exception):
        return kind, str(value)
    if isinstance(value, (list, tuple)):
        held = dict(enumerate(value))
    elif dataclasses.is_dataclass(value):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return kind, [(str(name), prints(item, depth + 1)) for name, item in held.items()]


def plain(value: Any) -> Any:
    """Return the same numbers, laid out in the usual way and in the machine's order of bytes."""
    if type(value) is np.ndarray and value.dtype.names is None and not value.dtype.hasobject:
        native = value.astype(value.dtype.newbyteorder("="))
        return np.ascontiguousarray(native).reshape(value.shape)
    return value


def outcome(target: Target, arguments: Arguments) -> Any:
    """Call and return the result, or the complaint; anything else is a finding."""

    def stop(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return target.function(**arguments)
    except TooSlow:
        raise Finding(f"did not come back within {SECONDS} s") from None
    except COMPLAINTS as error:
        return error
    except OSError as error:
        if "OSError" in (inspect.getdoc(target.function) or ""):
            return error
        raise Finding(f"{type(error).__name__}: {error}") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Finding(f"{type(error).__name__}: {error}") from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def same_memory(arguments: Arguments) -> list[str]:
    """Return the inputs that overlap the array for the result."""
    out, made = arguments.get("out"), arguments.get("_of")
    if not isinstance(out, np.ndarray):
        return []
    held = {name: [a] for name, a in arguments.items() if name != "out"}
    held["_of"] = list(vars(made).values()) if dataclasses.is_dataclass(made) else []
    return [name for name, arrays in held.items() if any(_overlap(a, out) for a in arrays)]


def _overlap(a: Any, out: np.ndarray) -> bool:
    return isinstance(a, np.ndarray) and np.shares_memory(a, out)


def judge(target: Target, seed: str, folder: Any) -> str:
    """Make one call and what it has to be equal to; return what became of it: "result" or "complaint".

    Raises
    ------
    Finding
        If a promise is broken.
    """
    draw = Draw(seed, folder)
    arguments = call_of(target, draw)
    try:
        return _judge(target, draw, arguments)
    except Finding as finding:
        hostile = ", ".join(name for name, _ in draw.hostile) or "nothing"
        shown = {name: _shown(value) for name, value in arguments.items()}
        raise Finding(f"{target.name} (seed {seed!r}; hostile: {hostile}): {finding}\n  {shown}") from finding


def _judge(target: Target, draw: Draw, arguments: Arguments) -> str:
    shared = same_memory(arguments)
    inputs = [name for name in arguments if name != "out" and name not in shared]
    apart = {name: copy.deepcopy(value) if name in shared else value for name, value in arguments.items()}
    again, usual = ({**apart, **({"out": _copy(apart["out"])} if "out" in apart else {})} for _ in range(2))
    before = [prints(arguments[name]) for name in inputs]
    lp.set_num_threads(2)
    found = outcome(target, arguments)
    kept = prints(found)
    lp.set_num_threads(2)
    if [prints(arguments[name]) for name in inputs] != before:
        raise Finding("an input was changed")
    if _is_complaint(found):
        _check_message(target, draw, arguments, found)
    else:
        if len(draw.hostile) == 1 and draw.hostile[0][1].refused and _is_asked_for(target, arguments, draw):
            raise Finding(f"{draw.hostile[0][0]} was taken")
        _check_result(target, draw, arguments, found)
    if target.name in ("train", "set_num_threads", "get_num_threads"):
        return "complaint" if _is_complaint(found) else "result"
    lp.set_num_threads(1)
    second = outcome(target, again)
    if prints(second) != kept:
        why = "overlaps " + ", ".join(shared) if shared else "second call, with one thread"
        raise Finding(f"other bits ({why}): {_shown(found)} then {_shown(second)}")
    if not _is_complaint(found):
        usual = {name: plain(value) for name, value in usual.items() if name != "out" or not _is_room(value)}
        third = outcome(target, usual)
        if prints(third) != kept:
            raise Finding(f"other bits with plain arrays and no out: {_shown(found)} then {_shown(third)}")
    return "complaint" if _is_complaint(found) else "result"


def _copy(out: Any) -> Any:
    """Return a copy of an array for a result, laid out and protected as it is."""
    if not isinstance(out, np.ndarray) or not (out.flags.c_contiguous and out.flags.writeable):
        return out
    return out.copy()


def _is_room(out: Any) -> bool:
    """Tell whether `out` is an array for the result, not the name of a format."""
    return isinstance(out, (np.ndarray, lp.Quantized))


def _is_complaint(found: Any) -> bool:
    return isinstance(found, Exception)


def _is_asked_for(target: Target, arguments: Arguments, draw: Draw) -> bool:
    """Tell whether a hostile value had any business being looked at: where there is no element, nothing is done."""
    name, _ = draw.hostile[0]
    if any(isinstance(a, np.ndarray) and a.size == 0 for a in arguments.values()):
        return False
    return name not in UNREAD.get(target.name, ())


#: Parameters that some other argument makes meaningless, or that a complaint puts in other words.
_RANDOM = ("seed", "offset")
UNREAD: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("encode", "round_to", "quantize", "quantize_dequantize", "logfmt.encode"), _RANDOM),
    "DelayedScaling.quantize": _RANDOM,
    "logfmt.unpack": ("columns", "tile", "bits", "range_bits"),  # of a stream that is another one with them
}


def _check_message(target: Target, draw: Draw, arguments: Arguments, error: Exception) -> None:
    text = str(error)
    if not text or len(text) > LONGEST_MESSAGE:
        raise Finding(f"a message of {len(text)} characters: {text[:200]!r}")
    if len(draw.hostile) != 1:
        return
    name, bad = draw.hostile[0]
    if name in UNREAD.get(target.name, ()):
        return
    made_for = (other for other in ("out", "c", "a_scale", "b_scale") if other != name and other in arguments)
    if any(f"{other} is" in text for other in made_for):
        return  # which suited what stood here before
    if bad.quotes and not any(quote and quote in text for quote in bad.quotes) and name not in text:
        if _is_complaint(outcome(target, draw.sound)):
            return  # the rest did not fit together, and that was noticed first
        raise Finding(f"neither {name} nor what was wrong with it ({bad.quotes[0]!r}) is in the message: {text!r}")


def _check_result(target: Target, draw: Draw, arguments: Arguments, found: Any) -> None:
    if target.name not in RESULTS or draw.hostile:
        return
    dtype, shape = RESULTS[target.name](arguments)
    if isinstance(found, lp.Quantized):
        found = found.codes
    kind = found.dtype if type(found) is np.ndarray else type(found)
    if kind != (dtype if dtype is float else np.dtype(dtype)) or np.shape(found) != tuple(shape):
        raise Finding(f"the result is {kind} {np.shape(found)}, documented is {dtype} {tuple(shape)}")
    out = arguments.get("out")
    if isinstance(out, np.ndarray) and found is not out and target.name != "gemm":
        raise Finding("the result is not in out")


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{type(value).__name__} {value.dtype} {value.shape} strides {value.strides}>"
    text = repr(value)
    return text if len(text) < 160 else text[:150] + "..."


def listing(*folders: Any) -> list[tuple[str, int]]:
    """Return the files below some folders and their sizes."""
    walked = (os.path.join(where, name) for folder in folders for where, _, names in os.walk(folder) for name in names)
    return sorted((path, os.lstat(path).st_size) for path in walked)

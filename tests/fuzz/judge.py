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
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or depth > 20:
            return repr(value.dtype), value.shape, repr(value.tolist())
        mask = bytes(np.ma.getmaskarray(value)) if isinstance(value, np.ma.MaskedArray) else b""
        return type(value).__name__, repr(value.dtype), value.shape, np.asarray(value).tobytes(), mask
    if isinstance(value, np.generic):
        return type(value).__name__, value.tobytes()
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, (bool, int, str, bytes, type(None), complex)):
        return type(value).__name__, value
    if depth > 20 or isinstance(value, (types.ModuleType, type, Registry)) or callable(value):
        return type(value).__name__
    if isinstance(value, dict):
        return "dict", [(str(key), prints(item, depth + 1)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [prints(item, depth + 1) for item in value]
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return type(value).__name__, [(name, prints(getattr(value, name), depth + 1)) for name in names]
    if isinstance(value, Exception):
        return type(value).__name__, str(value)
    if hasattr(value, "__dict__"):
        return type(value).__name__, [(name, prints(item, depth + 1)) for name, item in vars(value).items()]
    return type(value).__name__


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
    out = arguments.get("out")
    if not isinstance(out, np.ndarray):
        return []
    found = [name for name, a in arguments.items() if name != "out" and isinstance(a, np.ndarray)]
    found = [name for name in found if np.shares_memory(arguments[name], out)]
    made = arguments.get("_of")
    if dataclasses.is_dataclass(made) and any(
        isinstance(a, np.ndarray) and np.shares_memory(a, out) for a in vars(made).values()
    ):
        found.append("_of")
    return found


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
    apart = {name: copy.deepcopy(arguments[name]) if name in shared else arguments[name] for name in arguments}
    if "out" in apart:
        apart["out"] = _copy(arguments["out"])
    again = copy.copy(apart)
    if "out" in again:
        again["out"] = _copy(arguments["out"])
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
        usual = {name: plain(value) for name, value in apart.items() if name != "out" or not _is_room(value)}
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
    "logfmt.unpack": ("columns", "tile", "bits", "meta_bits"),  # of a stream that is another one with them
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
    if target.result is None or draw.hostile:
        return
    dtype, shape = target.result(arguments)
    if isinstance(found, lp.Quantized):
        found = found.codes
    if dtype is float:
        if type(found) is not float:
            raise Finding(f"a {type(found).__name__}, not a float")
        return
    if type(found) is not np.ndarray or found.dtype != np.dtype(dtype) or found.shape != tuple(shape):
        what = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
        raise Finding(f"the result is {what}, documented is {np.dtype(dtype)} {tuple(shape)}")
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
    found = []
    for folder in folders:
        for where, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(where, name)
                found.append((path, os.lstat(path).st_size))
    return sorted(found)

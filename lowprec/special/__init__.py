"""Special functions of accelerators in float32, as objects: their bits are part of a kernel's arithmetic."""

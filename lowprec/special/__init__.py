"""Special functions of accelerators in float32, as values: which bits 2**x has is part of a kernel's arithmetic."""

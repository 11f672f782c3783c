"""Golden models: C headers with the arithmetic of an accumulator, cast or quantizer, for emulators and RTL."""

"""Golden models: the arithmetic of an accumulator or of a cast as a C header, for emulators, compilers and RTL."""

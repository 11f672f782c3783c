// An encoder of E4M3 (OCP, saturating, to nearest even), as a program that lowprec can test:
//
//     cc -O2 -o encode docs/examples/e4m3_encode.c && lowprec vectors compare cast/e4m3fn --command ./encode
//
// It reads float32 words in hexadecimal, a line each, and answers with codes. -DTIES_AWAY, -DFLUSH and -DNAN_CODE=0x7e
// are mistakes that people make; lowprec names them.
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

#ifndef NAN_CODE
#define NAN_CODE 0x7f
#endif

uint8_t e4m3_encode(uint32_t bits) {
    uint8_t sign = (bits >> 31) << 7;
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | NAN_CODE;
    int exponent = (int)(magnitude >> 23) - 127;
    if (exponent < -10) return sign;                       // below half of the least subnormal
    if (exponent > 8) return sign | 0x7e;                  // 512 and more, Inf included
    uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
    int drop = exponent < -6 ? 20 + (-6 - exponent) : 20;  // bits below the last kept one
    uint32_t kept = significand >> drop, rest = significand & ((1u << drop) - 1), half = 1u << (drop - 1);
#ifdef TIES_AWAY
    kept += rest >= half;
#else
    kept += rest > half || (rest == half && (kept & 1));
#endif
    // A subnormal that rounds up to 8 is the least normal number, a significand that rounds up to 16 the next binade.
    uint32_t code = exponent < -6 ? kept : ((uint32_t)(exponent + 6) << 3) + kept;
#ifdef FLUSH
    if (code < 8) code = 0;
#endif
    return sign | (code > 0x7e ? 0x7e : code);
}

#ifndef LOWPREC_SELF_TEST
int main(void) {
    uint32_t bits;
    while (scanf("%" SCNx32, &bits) == 1) printf("%02x\n", e4m3_encode(bits));
    return 0;
}
#endif

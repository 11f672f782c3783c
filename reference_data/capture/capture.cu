// What a Hopper GPU's tensor cores and special functions return, bit for bit: tiles of 64 x 64 outputs, and every input.
//
// One library with a C interface and no dependency but the CUDA runtime; capture.py and capture_special.py compile and feed it:
//     nvcc -O2 -std=c++17 -gencode arch=compute_90a,code=sm_90a -shared -Xcompiler -fPIC -o libcapture.so capture.cu
//
// A tile is D = A B^T + C with A and B of 64 rows each and K in steps of 32 BYTES: 32 values of 8 bits, 16 of 16 bits
// or 8 of 32 bits. That is one wgmma (m64n64) or, for mma.sync (m16n8), four warps with eight instructions each, and it
// makes one staging, one loader and one storer serve all of them. K of more than one step is a chain: each D is the
// next C and stays in its registers.
//
// Shared memory, and why the descriptor says what it says
// -------------------------------------------------------
// wgmma reads A and B through "core matrices" of 8 rows x 16 bytes. Without swizzling, K-major, a core matrix is 128
// contiguous bytes (row r of the eight at 16 r) and in units of 16 bytes the operand is ((8, n), 2) : ((1, SBO), LBO):
//     SBO, stride byte offset:  from one group of 8 rows to the next                        (here n = 8 groups)
//     LBO, leading byte offset: from the first 16 bytes of k to the second (8 rows x 2 columns of 16 bytes make a step)
// Operands are stored as [2 halves of k][64 rows][16 bytes], so that 16-byte unit (half, row) lies at 64 half + row:
//     SBO = 8 units = 128 bytes, LBO = 64 units = 1024 bytes.
// The descriptor's fields, all byte counts divided by 16: bits 0-13 address, 16-29 LBO, 32-45 SBO, 49-51 base offset
// (0: nothing is swizzled), 62-63 swizzle mode (0: none). (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory
// Layout"; CUTLASS, make_gmma_desc for Major-K, INTERLEAVE.) A mistake here gives wrong sums of small integers, which
// capture.py looks for before it believes anything.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

constexpr int TILE = 64;
constexpr int THREADS = 128;  // a warpgroup
constexpr uint64_t LBO = 1024, SBO = 128;

__device__ uint64_t descriptor(const uint4* units) {
  const uint64_t address = __cvta_generic_to_shared(units);
  return ((address & 0x3FFFF) >> 4) | (LBO >> 4) << 16 | (SBO >> 4) << 32;
}

// ---- instructions ---------------------------------------------------------------------------------------------------
// Each is a struct with its accumulator (Word acc[WORDS]) and one step. Accumulators lie alike in all of them: a
// thread's pair p of neighbouring columns is at row 16 warp + lane / 4 + 8 (p % 2), columns 8 (p / 2) + 2 (lane % 4).

#define FLOATS_32 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
  "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), \
  "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), \
  "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define HALVES_16 \
  "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), \
  "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

// `with_c` is the instruction's scale-d: 0 leaves C out of the sum, 1 takes it from the registers. Fence, commit and
// wait stand in the same block, so that the accumulator is settled on both sides of it.
#define WGMMA(NAME, SHAPE_AND_TYPES, WORD, COUNT, OPERANDS, NAMES, A, B, P, IMMEDIATES) \
  struct NAME { \
    using Word = WORD; \
    static constexpr int WORDS = COUNT; \
    static __device__ void step(Word (&d)[WORDS], const uint4* a, const uint4* b, int with_c) { \
      asm volatile( \
          "{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\nwgmma.fence.sync.aligned;\n" \
          "wgmma.mma_async.sync.aligned." SHAPE_AND_TYPES " {" NAMES "}, " A ", " B ", p, " IMMEDIATES ";\n" \
          "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}\n" \
          : OPERANDS \
          : "l"(descriptor(a)), "l"(descriptor(b)), "r"(with_c) \
          : "memory"); \
    } \
  };
#define WGMMA_F32(NAME, SHAPE, TYPES, IMMEDIATES) \
  WGMMA(NAME, SHAPE ".f32." TYPES, float, 32, FLOATS_32, NAMES_32, "%32", "%33", "%34", IMMEDIATES)
#define WGMMA_F16(NAME, SHAPE, TYPES, IMMEDIATES) \
  WGMMA(NAME, SHAPE ".f16." TYPES, uint32_t, 16, HALVES_16, NAMES_16, "%16", "%17", "%18", IMMEDIATES)

#define SIGNS "1, 1"                     // +A, +B
#define SIGNS_AND_MAJOR SIGNS ", 0, 0"   // ... both K-major, which 16-bit types have to say

WGMMA_F32(WgmmaE4E4F32, "m64n64k32", "e4m3.e4m3", SIGNS)
WGMMA_F32(WgmmaE4E5F32, "m64n64k32", "e4m3.e5m2", SIGNS)
WGMMA_F32(WgmmaE5E4F32, "m64n64k32", "e5m2.e4m3", SIGNS)
WGMMA_F32(WgmmaE5E5F32, "m64n64k32", "e5m2.e5m2", SIGNS)
WGMMA_F16(WgmmaE4E4F16, "m64n64k32", "e4m3.e4m3", SIGNS)
WGMMA_F16(WgmmaE4E5F16, "m64n64k32", "e4m3.e5m2", SIGNS)
WGMMA_F16(WgmmaE5E4F16, "m64n64k32", "e5m2.e4m3", SIGNS)
WGMMA_F16(WgmmaE5E5F16, "m64n64k32", "e5m2.e5m2", SIGNS)
WGMMA_F32(WgmmaF16F32, "m64n64k16", "f16.f16", SIGNS_AND_MAJOR)
WGMMA_F16(WgmmaF16F16, "m64n64k16", "f16.f16", SIGNS_AND_MAJOR)
WGMMA_F32(WgmmaBf16F32, "m64n64k16", "bf16.bf16", SIGNS_AND_MAJOR)
WGMMA_F32(WgmmaTf32F32, "m64n64k8", "tf32.tf32", SIGNS)

// mma.sync takes A and B from registers. In bytes of k their fragments are the same for 8, 16 and 32 bits: lane l
// holds 4 bytes at 4 (l % 4) of each half of k, of rows l / 4 and l / 4 + 8 of A and of row l / 4 of B.
#define MMA(NAME, SHAPE_AND_TYPES, WORD, COUNT, INSTRUCTION) \
  struct NAME { \
    using Word = WORD; \
    static constexpr int WORDS = COUNT; \
    static __device__ void step(Word (&d)[WORDS], const uint4* a, const uint4* b, int) { \
      const uint32_t* wa = reinterpret_cast<const uint32_t*>(a); \
      const uint32_t* wb = reinterpret_cast<const uint32_t*>(b); \
      const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, word = lane % 4; \
      const uint32_t a0 = wa[4 * row + word], a1 = wa[4 * (row + 8) + word]; \
      const uint32_t a2 = wa[4 * (TILE + row) + word], a3 = wa[4 * (TILE + row + 8) + word]; \
      _Pragma("unroll") for (int j = 0; j < TILE / 8; j++) { \
        const int column = 8 * j + lane / 4; \
        const uint32_t b0 = wb[4 * column + word], b1 = wb[4 * (TILE + column) + word]; \
        INSTRUCTION(SHAPE_AND_TYPES) \
      } \
    } \
  };
#define MMA_INTO_FLOATS(SHAPE_AND_TYPES) \
  asm volatile("mma.sync.aligned." SHAPE_AND_TYPES \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n" \
               : "+f"(d[4 * j]), "+f"(d[4 * j + 1]), "+f"(d[4 * j + 2]), "+f"(d[4 * j + 3]) \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#define MMA_INTO_HALVES(SHAPE_AND_TYPES) \
  asm volatile("mma.sync.aligned." SHAPE_AND_TYPES " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};\n" \
               : "+r"(d[2 * j]), "+r"(d[2 * j + 1]) \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
// A MMA of tf32 is m16n8k8, of 16 bits m16n8k16, of 8 bits m16n8k32: 32 bytes of k each.
#define MMA_F32(NAME, SHAPE, TYPES) MMA(NAME, SHAPE ".row.col.f32." TYPES ".f32", float, 32, MMA_INTO_FLOATS)
#define MMA_F16(NAME, SHAPE, TYPES) MMA(NAME, SHAPE ".row.col.f16." TYPES ".f16", uint32_t, 16, MMA_INTO_HALVES)

MMA_F32(MmaE4E4F32, "m16n8k32", "e4m3.e4m3")
MMA_F32(MmaE4E5F32, "m16n8k32", "e4m3.e5m2")
MMA_F32(MmaE5E4F32, "m16n8k32", "e5m2.e4m3")
MMA_F32(MmaE5E5F32, "m16n8k32", "e5m2.e5m2")
MMA_F16(MmaE4E4F16, "m16n8k32", "e4m3.e4m3")
MMA_F16(MmaE4E5F16, "m16n8k32", "e4m3.e5m2")
MMA_F16(MmaE5E4F16, "m16n8k32", "e5m2.e4m3")
MMA_F16(MmaE5E5F16, "m16n8k32", "e5m2.e5m2")
MMA_F32(MmaF16F32, "m16n8k16", "f16.f16")
MMA_F16(MmaF16F16, "m16n8k16", "f16.f16")
MMA_F32(MmaBf16F32, "m16n8k16", "bf16.bf16")
MMA_F32(MmaTf32F32, "m16n8k8", "tf32.tf32")

// ---- kernels --------------------------------------------------------------------------------------------------------

// Copy step `step` of 64 rows of K bytes to shared memory as [half][row][16 bytes]; thread t moves half t % 2 of row
// t / 2. The fence makes ordinary stores visible to wgmma, which reads through the asynchronous proxy.
__device__ void stage(uint4* units, const uint4* rows, int steps, int step) {
  const int row = threadIdx.x / 2, half = threadIdx.x % 2;
  units[TILE * half + row] = rows[(row * steps + step) * 2 + half];
}
__device__ void staged() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
  __syncthreads();
}

// Where accumulator word i of this thread is in a tile of 32-bit words: 64 in a row of floats, 32 in one of halves.
template <class Op>
__device__ int place(int i) {
  constexpr bool halves = Op::WORDS == 16;
  const int pair = halves ? i : i / 2, lane = threadIdx.x % 32;
  const int row = threadIdx.x / 32 * 16 + lane / 4 + 8 * (pair % 2), column = 4 * (pair / 2) + lane % 4;
  return halves ? row * (TILE / 2) + column : row * TILE + 2 * column + i % 2;
}

__device__ void take(float& to, uint32_t bits) { to = __uint_as_float(bits); }
__device__ void take(uint32_t& to, uint32_t bits) { to = bits; }
__device__ uint32_t bits_of(float x) { return __float_as_uint(x); }
__device__ uint32_t bits_of(uint32_t x) { return x; }

// Tile blockIdx.x: a, b [tiles, 64, 32 * steps] bytes; c, d [tiles, 64, 64] floats or halves.
template <class Op>
__global__ void __launch_bounds__(THREADS)
tiles(const uint4* a, const uint4* b, const uint32_t* c, uint32_t* d, int steps) {
  __shared__ alignas(128) uint4 sa[2 * TILE], sb[2 * TILE];
  const size_t rows = static_cast<size_t>(blockIdx.x) * TILE * steps * 2;
  const size_t words = static_cast<size_t>(blockIdx.x) * THREADS * Op::WORDS;
  typename Op::Word acc[Op::WORDS];
#pragma unroll
  for (int i = 0; i < Op::WORDS; i++) take(acc[i], c[words + place<Op>(i)]);
  for (int step = 0; step < steps; step++) {
    __syncthreads();
    stage(sa, a + rows, steps, step);
    stage(sb, b + rows, steps, step);
    staged();
    Op::step(acc, sa, sb, 1);
  }
#pragma unroll
  for (int i = 0; i < Op::WORDS; i++) d[words + place<Op>(i)] = bits_of(acc[i]);
}

// A GEMM as DeepGEMM does it: chains of four wgmma (128 of k), the first without C, and after each, in FP32,
// final = fma(scale_a * scale_b, chain, final). Block (x, y) has rows 64 x and columns 64 y of the result [m, n];
// a [m, 128 * blocks] and b [n, 128 * blocks] are e4m3, scales are [m, blocks] and [n, blocks].
__global__ void __launch_bounds__(THREADS)
promoted(const uint4* a, const uint4* b, const float* scale_a, const float* scale_b, float* d, int n, int blocks) {
  using Op = WgmmaE4E4F32;
  __shared__ alignas(128) uint4 sa[2 * TILE], sb[2 * TILE];
  const int steps = 4 * blocks;
  a += static_cast<size_t>(blockIdx.x) * TILE * steps * 2;
  b += static_cast<size_t>(blockIdx.y) * TILE * steps * 2;
  scale_a += blockIdx.x * TILE * blocks;
  scale_b += blockIdx.y * TILE * blocks;
  float acc[Op::WORDS], final[Op::WORDS];
#pragma unroll
  for (int i = 0; i < Op::WORDS; i++) acc[i] = final[i] = 0.0f;
  for (int block = 0; block < blocks; block++) {
    for (int part = 0; part < 4; part++) {
      __syncthreads();
      stage(sa, a, steps, 4 * block + part);
      stage(sb, b, steps, 4 * block + part);
      staged();
      Op::step(acc, sa, sb, part);
    }
#pragma unroll
    for (int i = 0; i < Op::WORDS; i++) {
      const int row = place<Op>(i) / TILE, column = place<Op>(i) % TILE;
      final[i] = __fmaf_rn(__fmul_rn(scale_a[row * blocks + block], scale_b[column * blocks + block]), acc[i],
                           final[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < Op::WORDS; i++) {
    const int row = blockIdx.x * TILE + place<Op>(i) / TILE, column = blockIdx.y * TILE + place<Op>(i) % TILE;
    d[static_cast<size_t>(row) * n + column] = final[i];
  }
}

// ---- special functions ----------------------------------------------------------------------------------------------
// An input is a number's word; of 16 bits, x and its complement in a pair, so that both lanes see every number.

#define SPECIAL(NAME, INSTRUCTION, INPUT) \
  struct NAME { \
    static __device__ uint32_t of(uint32_t x) { \
      uint32_t y; \
      asm volatile(INSTRUCTION " %0, %1;\n" : "=r"(y) : "r"(INPUT)); \
      return y; \
    } \
  };
#define OF_PAIR (x & 0xFFFF) | ~x << 16

SPECIAL(Ex2, "ex2.approx.ftz.f32", x)
SPECIAL(Lg2, "lg2.approx.ftz.f32", x)
SPECIAL(Rcp, "rcp.approx.ftz.f32", x)
SPECIAL(Rsqrt, "rsqrt.approx.ftz.f32", x)
SPECIAL(Sqrt, "sqrt.approx.ftz.f32", x)
SPECIAL(Sin, "sin.approx.ftz.f32", x)
SPECIAL(Cos, "cos.approx.ftz.f32", x)
SPECIAL(Tanh, "tanh.approx.f32", x)
SPECIAL(Ex2F16, "ex2.approx.f16x2", OF_PAIR)
SPECIAL(Ex2Bf16, "ex2.approx.ftz.bf16x2", OF_PAIR)
SPECIAL(TanhF16, "tanh.approx.f16x2", OF_PAIR)
SPECIAL(TanhBf16, "tanh.approx.bf16x2", OF_PAIR)

SPECIAL(Ex2Subnormal, "ex2.approx.f32", x)
SPECIAL(Lg2Subnormal, "lg2.approx.f32", x)
SPECIAL(RcpSubnormal, "rcp.approx.f32", x)
SPECIAL(RsqrtSubnormal, "rsqrt.approx.f32", x)
SPECIAL(SqrtSubnormal, "sqrt.approx.f32", x)
SPECIAL(RoundTf32, "cvt.rna.tf32.f32", x)

// Functions of CUDA's library, as a compiler without --use_fast_math takes them.
#define LIBRARY(NAME, CALL) \
  struct NAME { \
    static __device__ uint32_t of(uint32_t x) { return __float_as_uint(CALL(__uint_as_float(x))); } \
  };
LIBRARY(Expf, expf)
LIBRARY(Logf, logf)
LIBRARY(Tanhf, tanhf)
LIBRARY(Erff, erff)
LIBRARY(Rsqrtf, rsqrtf)

// Conversions of a number and its negative, in the low and the high part of a word.
#define CONVERSION(NAME, INSTRUCTION, WORD, CONSTRAINT) \
  struct NAME { \
    static __device__ uint32_t of(uint32_t x) { \
      WORD y; \
      asm volatile(INSTRUCTION " %0, %1, %2;\n" : CONSTRAINT(y) : "f"(-__uint_as_float(x)), "f"(__uint_as_float(x))); \
      return y; \
    } \
  };
CONVERSION(ToE4m3, "cvt.rn.satfinite.e4m3x2.f32", uint16_t, "=h")
CONVERSION(ToE5m2, "cvt.rn.satfinite.e5m2x2.f32", uint16_t, "=h")
CONVERSION(ToBf16, "cvt.rn.bf16x2.f32", uint32_t, "=r")
CONVERSION(ToF16, "cvt.rn.f16x2.f32", uint32_t, "=r")

// Results of the inputs first, first + step, and so on, one per thread.
template <class F>
__global__ void special(uint32_t first, uint32_t step, uint32_t* d) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  d[i] = F::of(first + step * i);
}

// ---- functions of two numbers ---------------------------------------------------------------------------------------

#define BINARY(NAME, INSTRUCTION) \
  __global__ void NAME(const float* x, const float* y, float* d) { \
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; \
    asm volatile(INSTRUCTION " %0, %1, %2;\n" : "=f"(d[i]) : "f"(x[i]), "f"(y[i])); \
  }
BINARY(div_full, "div.full.f32")
BINARY(div_full_ftz, "div.full.ftz.f32")
BINARY(div_approx, "div.approx.f32")
BINARY(div_approx_ftz, "div.approx.ftz.f32")

// Addition of y to x in global memory, by the unit of the L2 cache.
__global__ void red_add(const float* x, const float* y, float* d) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  d[i] = x[i];
  __threadfence();
  asm volatile("red.global.add.f32 [%0], %1;\n" ::"l"(d + i), "f"(y[i]) : "memory");
}

// The same by the bulk copy engine.
__global__ void bulk_add(const float* x, const float* y, float* d) {
  __shared__ alignas(128) float part[THREADS];
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  d[i] = x[i];
  part[threadIdx.x] = y[i];
  __threadfence();
  asm volatile("fence.proxy.async;\n" ::: "memory");
  __syncthreads();
  if (threadIdx.x != 0) return;
  const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(part));
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(d + i), "r"(from),
               "r"(static_cast<uint32_t>(sizeof part))
               : "memory");
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n" ::: "memory");
}

// ---- host -----------------------------------------------------------------------------------------------------------

using Kernel = void (*)(const uint4*, const uint4*, const uint32_t*, uint32_t*, int);
struct Instruction {
  const char* name;
  Kernel kernel;
  int words;  // accumulator words per thread
};
template <class Op>
constexpr Instruction entry(const char* name) {
  return {name, tiles<Op>, Op::WORDS};
}

const Instruction INSTRUCTIONS[] = {
    entry<WgmmaE4E4F32>("wgmma.f32.e4m3.e4m3"), entry<WgmmaE4E5F32>("wgmma.f32.e4m3.e5m2"),
    entry<WgmmaE5E4F32>("wgmma.f32.e5m2.e4m3"), entry<WgmmaE5E5F32>("wgmma.f32.e5m2.e5m2"),
    entry<WgmmaE4E4F16>("wgmma.f16.e4m3.e4m3"), entry<WgmmaE4E5F16>("wgmma.f16.e4m3.e5m2"),
    entry<WgmmaE5E4F16>("wgmma.f16.e5m2.e4m3"), entry<WgmmaE5E5F16>("wgmma.f16.e5m2.e5m2"),
    entry<WgmmaF16F32>("wgmma.f32.f16.f16"),    entry<WgmmaF16F16>("wgmma.f16.f16.f16"),
    entry<WgmmaBf16F32>("wgmma.f32.bf16.bf16"), entry<WgmmaTf32F32>("wgmma.f32.tf32.tf32"),
    entry<MmaE4E4F32>("mma.f32.e4m3.e4m3"),     entry<MmaE4E5F32>("mma.f32.e4m3.e5m2"),
    entry<MmaE5E4F32>("mma.f32.e5m2.e4m3"),     entry<MmaE5E5F32>("mma.f32.e5m2.e5m2"),
    entry<MmaE4E4F16>("mma.f16.e4m3.e4m3"),     entry<MmaE4E5F16>("mma.f16.e4m3.e5m2"),
    entry<MmaE5E4F16>("mma.f16.e5m2.e4m3"),     entry<MmaE5E5F16>("mma.f16.e5m2.e5m2"),
    entry<MmaF16F32>("mma.f32.f16.f16"),        entry<MmaF16F16>("mma.f16.f16.f16"),
    entry<MmaBf16F32>("mma.f32.bf16.bf16"),     entry<MmaTf32F32>("mma.f32.tf32.tf32"),
};

struct Function {
  const char* name;
  void (*kernel)(uint32_t, uint32_t, uint32_t*);
};
const Function FUNCTIONS[] = {
    {"ex2.approx.ftz.f32", special<Ex2>},   {"lg2.approx.ftz.f32", special<Lg2>},
    {"rcp.approx.ftz.f32", special<Rcp>},   {"rsqrt.approx.ftz.f32", special<Rsqrt>},
    {"sqrt.approx.ftz.f32", special<Sqrt>}, {"sin.approx.ftz.f32", special<Sin>},
    {"cos.approx.ftz.f32", special<Cos>},   {"tanh.approx.f32", special<Tanh>},
    {"ex2.approx.f16x2", special<Ex2F16>},  {"ex2.approx.ftz.bf16x2", special<Ex2Bf16>},
    {"tanh.approx.f16x2", special<TanhF16>}, {"tanh.approx.bf16x2", special<TanhBf16>},
    {"ex2.approx.f32", special<Ex2Subnormal>}, {"lg2.approx.f32", special<Lg2Subnormal>},
    {"rcp.approx.f32", special<RcpSubnormal>}, {"rsqrt.approx.f32", special<RsqrtSubnormal>},
    {"sqrt.approx.f32", special<SqrtSubnormal>}, {"cvt.rna.tf32.f32", special<RoundTf32>},
    {"expf", special<Expf>}, {"logf", special<Logf>}, {"tanhf", special<Tanhf>},
    {"erff", special<Erff>}, {"rsqrtf", special<Rsqrtf>},
    {"cvt.rn.satfinite.e4m3x2.f32", special<ToE4m3>}, {"cvt.rn.satfinite.e5m2x2.f32", special<ToE5m2>},
    {"cvt.rn.bf16x2.f32", special<ToBf16>}, {"cvt.rn.f16x2.f32", special<ToF16>},
};

struct Binary {
  const char* name;
  void (*kernel)(const float*, const float*, float*);
};
const Binary BINARIES[] = {
    {"div.full.f32", div_full},          {"div.full.ftz.f32", div_full_ftz}, {"div.approx.f32", div_approx},
    {"div.approx.ftz.f32", div_approx_ftz}, {"red.global.add.f32", red_add},
    {"cp.reduce.async.bulk.add.f32", bulk_add},
};

// Device memory that frees itself; a failure is remembered and everything after it does nothing.
struct Buffer {
  void* data = nullptr;
  cudaError_t& error;
  Buffer(size_t bytes, cudaError_t& e, const void* from = nullptr) : error(e) {
    if (error == cudaSuccess) error = cudaMalloc(&data, bytes);
    if (error == cudaSuccess && from) error = cudaMemcpy(data, from, bytes, cudaMemcpyHostToDevice);
  }
  void read(void* to, size_t bytes) {
    if (error == cudaSuccess) error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaMemcpy(to, data, bytes, cudaMemcpyDeviceToHost);
  }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  template <class T>
  T* as() { return static_cast<T*>(data); }
};

}  // namespace

extern "C" {

// Name of instruction `index`, or null past the last one.
const char* capture_name(int index) {
  const int count = static_cast<int>(sizeof INSTRUCTIONS / sizeof *INSTRUCTIONS);
  return 0 <= index && index < count ? INSTRUCTIONS[index].name : nullptr;
}

const char* capture_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

// Describe device 0; every function returns 0 or a CUDA error.
int capture_device(char* name, int size, int* capability, int* driver, int* runtime) {
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceProperties(&properties, 0);
  if (error == cudaSuccess) error = cudaDriverGetVersion(driver);
  if (error == cudaSuccess) error = cudaRuntimeGetVersion(runtime);
  if (error != cudaSuccess) return error;
  snprintf(name, size, "%s", properties.name);
  *capability = 10 * properties.major + properties.minor;
  return 0;
}

// Run one instruction on `count` tiles of `steps` steps; layouts as in the kernel `tiles`.
int capture_tiles(const char* name, int count, int steps, const void* a, const void* b, const void* c, void* d) {
  for (const Instruction& instruction : INSTRUCTIONS) {
    if (std::strcmp(name, instruction.name) != 0) continue;
    cudaError_t error = cudaSuccess;
    const size_t operand = static_cast<size_t>(count) * TILE * 32 * steps;
    const size_t result = static_cast<size_t>(count) * THREADS * instruction.words * sizeof(uint32_t);
    Buffer da(operand, error, a), db(operand, error, b), dc(result, error, c), dd(result, error);
    if (error == cudaSuccess)
      instruction.kernel<<<count, THREADS>>>(da.as<uint4>(), db.as<uint4>(), dc.as<uint32_t>(), dd.as<uint32_t>(),
                                             steps);
    dd.read(d, result);
    return error;
  }
  return cudaErrorInvalidValue;
}

// Run the promoted GEMM; m and n are multiples of 64, layouts as in the kernel `promoted`.
int capture_promoted(int m, int n, int blocks, const void* a, const void* b, const void* scale_a, const void* scale_b,
                     void* d) {
  cudaError_t error = cudaSuccess;
  const size_t row = 128 * static_cast<size_t>(blocks), scales = sizeof(float) * blocks;
  const size_t result = sizeof(float) * m * n;
  Buffer da(m * row, error, a), db(n * row, error, b), dsa(m * scales, error, scale_a), dsb(n * scales, error, scale_b);
  Buffer dd(result, error);
  if (error == cudaSuccess)
    promoted<<<dim3(m / TILE, n / TILE), THREADS>>>(da.as<uint4>(), db.as<uint4>(), dsa.as<float>(), dsb.as<float>(),
                                                    dd.as<float>(), n, blocks);
  dd.read(d, result);
  return error;
}

// Run a special function on `count` inputs, a multiple of THREADS: first, first + step, and so on.
int capture_special(const char* name, uint32_t first, uint32_t step, int count, void* d) {
  for (const Function& function : FUNCTIONS) {
    if (std::strcmp(name, function.name) != 0) continue;
    cudaError_t error = cudaSuccess;
    const size_t bytes = static_cast<size_t>(count) * sizeof(uint32_t);
    Buffer dd(bytes, error);
    if (error == cudaSuccess) function.kernel<<<count / THREADS, THREADS>>>(first, step, dd.as<uint32_t>());
    dd.read(d, bytes);
    return error;
  }
  return cudaErrorInvalidValue;
}

// Run a function of two float32 on `count` pairs, a multiple of THREADS.
int capture_binary(const char* name, int count, const void* x, const void* y, void* d) {
  for (const Binary& function : BINARIES) {
    if (std::strcmp(name, function.name) != 0) continue;
    cudaError_t error = cudaSuccess;
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    Buffer dx(bytes, error, x), dy(bytes, error, y), dd(bytes, error);
    if (error == cudaSuccess)
      function.kernel<<<count / THREADS, THREADS>>>(dx.as<float>(), dy.as<float>(), dd.as<float>());
    dd.read(d, bytes);
    return error;
  }
  return cudaErrorInvalidValue;
}

}  // extern "C"

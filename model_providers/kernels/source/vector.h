// One vector register of floats, for whichever instruction set the file is compiled for, and what the kernels do with it.
//
// GCC's and Clang's vector extensions, with hardly an intrinsic, so that one source serves every target. Numbers are stored as float, bf16
// or int8 and are always computed with as float.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

#define MEGASERVE_INLINE inline __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

struct bf16 {
  uint16_t bits;
};

MEGASERVE_INLINE Floats broadcast(float value) { return value - Floats{}; }

MEGASERVE_INLINE Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

MEGASERVE_INLINE Floats load(const bf16* from) {
#if defined(__AVX512F__)
  const Words words = (Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
  // GCC 12 would take three instructions for the conversion below.
  const Words words = (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
#else
  Halves bits;
  std::memcpy(&bits, from, sizeof bits);
  const Words words = __builtin_convertvector(bits, Words);
#endif
  return (Floats)(words << 16);
}

MEGASERVE_INLINE Floats load(const int8_t* from) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, Floats);
#endif
}

MEGASERVE_INLINE void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

// Rounds to nearest, ties to even; NaN stays NaN.
MEGASERVE_INLINE void store(bf16* to, Floats value) {
  const Words bits = (Words)value;
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words is_nan = (Words)(value != value);
  const Halves halves = __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fc0u), Halves);
  std::memcpy(to, &halves, sizeof halves);
}

// Fewer than kLanes numbers: lanes beyond them are 0 when loaded and not written when stored.
template <class T>
MEGASERVE_INLINE Floats load_first(const T* from, int count) {
  T padded[kLanes] = {};
  for (int lane = 0; lane < count; ++lane) padded[lane] = from[lane];
  return load(padded);
}

template <class T>
MEGASERVE_INLINE void store_first(T* to, Floats value, int count) {
  T padded[kLanes];
  store(padded, value);
  for (int lane = 0; lane < count; ++lane) to[lane] = padded[lane];
}

MEGASERVE_INLINE float load_one(const float* from) { return *from; }

MEGASERVE_INLINE float load_one(const bf16* from) {
  const uint32_t bits = uint32_t(from->bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

MEGASERVE_INLINE void store_one(float* to, float value) { *to = value; }

MEGASERVE_INLINE void store_one(bf16* to, float value) { store_first(to, broadcast(value), 1); }

MEGASERVE_INLINE Floats select(Ints condition, Floats yes, Floats no) {
  return (Floats)((condition & (Ints)yes) | (~condition & (Ints)no));
}

// NaN in either argument gives b.
MEGASERVE_INLINE Floats larger(Floats a, Floats b) { return select(a > b, a, b); }

// The order of the additions is a fixed tree over lanes.
MEGASERVE_INLINE float sum_of_lanes(Floats value) {
  float lanes[kLanes];
  store(lanes, value);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

MEGASERVE_INLINE float first_lane(Floats value) { return value[0]; }

MEGASERVE_INLINE float largest_lane(Floats value) {
  float lanes[kLanes];
  store(lanes, value);
  float largest = lanes[0];
  for (int lane = 1; lane < kLanes; ++lane) largest = lanes[lane] > largest ? lanes[lane] : largest;
  return largest;
}

// e^x within 2 units in the last place; 0 below -87, e^88 above 88, NaN for NaN.
MEGASERVE_INLINE Floats exponential(Floats x) {
  const Floats top = broadcast(88.0f), bottom = broadcast(-87.0f);
  const Floats bounded = select(x > top, top, select(x < bottom, bottom, x));
  // Adding 1.5 * 2^23 rounds to an integer and leaves that integer in the low bits of the sum.
  const Floats shifted = bounded * 1.44269504089f + 12582912.0f;
  const Floats power = shifted - 12582912.0f;
  // ln 2 in two parts, so that the remainder is exact enough.
  const Floats rest = (bounded - power * 0.693359375f) + power * 2.12194440e-4f;
  Floats series = broadcast(1.0f / 5040.0f);
  series = series * rest + 1.0f / 720.0f;
  series = series * rest + 1.0f / 120.0f;
  series = series * rest + 1.0f / 24.0f;
  series = series * rest + 1.0f / 6.0f;
  series = series * rest + 0.5f;
  series = series * rest + 1.0f;
  series = series * rest + 1.0f;
  const Floats scaled = (Floats)((Words)series + ((Words)shifted << 23));
  return select(x < bottom, Floats{}, select(x == x, scaled, x));
}

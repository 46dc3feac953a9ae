/* What the kernels share. All tensors are float32 and contiguous, unless a kernel says otherwise. */
#ifndef LZERO_ASYNC_COMMON_H
#define LZERO_ASYNC_COMMON_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16 /* numbers in the largest vector */

#define INLINE static inline __attribute__((always_inline))

/* The exponential function to within two units in the last place, in a form that compilers make vectors of.
   NaN stays NaN. Below -87 and above 88 it stays what it is there. */
INLINE float exponential(float x) {
    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: adding it rounds */
    const float shifted = x * 1.44269504f + to_integer;
    const float n = shifted - to_integer;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* ln 2 in two parts */
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23; /* 2^n: the low bits of `shifted` are n */
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* GELU with its tanh approximation is x * sigmoid(SLOPE * (x + CUBIC * x^3)). */
#define SLOPE 1.5957691216f
#define CUBIC 0.044715f

INLINE float gelu_gate(float x) {
    return 1.0f / (1.0f + exponential(-SLOPE * (x + CUBIC * x * x * x)));
}

#endif

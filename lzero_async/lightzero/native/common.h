/* What the kernels share. All tensors are float32 and contiguous, unless a kernel says otherwise. */
#ifndef LZERO_ASYNC_COMMON_H
#define LZERO_ASYNC_COMMON_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16 /* numbers in the largest vector */

#define INLINE static inline __attribute__((always_inline))

/* The exponential function to within two units in the last place, in a form that compilers make vectors of.
   NaN stays NaN. Below -87 it stays what it is there, above 88.3 it is infinite. */
INLINE float exponential(float x) {
    x = x > 89.0f ? 89.0f : x;
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

/* The natural logarithm of a positive number, to within two units in the last place of 1. What is not finite gives NaN.
   */
INLINE float logarithm(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int32_t n = (bits - 0x3f3504f3) >> 23; /* so that what is left lies around 1, from the root of 1/2 on */
    bits -= n << 23;
    float m;
    memcpy(&m, &bits, sizeof m);
    /* log m = 2 artanh s, where s = (m - 1) / (m + 1) */
    const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    const float p = 0.3333333333f + z * (0.2f + z * (0.1428571429f + z * 0.1111111111f));
    return (float)n * 0.693147181f + 2.0f * (s + s * z * p) + 0.0f * x;
}

/* `x` and `y` may be the same. */
INLINE void softmax(const float *x, float *y, const int64_t count) {
    float most = x[0], sum = 0.0f;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < count; i++)
        most = x[i] > most ? x[i] : most;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        y[i] = exponential(x[i] - most);
        sum += y[i];
    }
    const float part = 1.0f / sum;
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        y[i] *= part;
}

/* GELU with its tanh approximation is x * sigmoid(SLOPE * (x + CUBIC * x^3)). */
#define SLOPE 1.5957691216f
#define CUBIC 0.044715f

INLINE float gelu_gate(float x) {
    return 1.0f / (1.0f + exponential(-SLOPE * (x + CUBIC * x * x * x)));
}

/* GELU of `x` once more, and its gradient in the place of that of its result. */
INLINE void gelu_again(const float *restrict inputs, float *restrict of_gelu, float *restrict gelu, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        const float x = inputs[i], gate = gelu_gate(x), slope = SLOPE * (1.0f + 3.0f * CUBIC * x * x);
        gelu[i] = x * gate;
        of_gelu[i] *= gate + x * slope * gate * (1.0f - gate);
    }
}

#endif

#include "common.h"

#include <stdlib.h>

/* Attention of each token to those before it and itself, of many short sequences.

   Sequence s has the rows first[s] to first[s + 1] of `qkv` (row, query or key or value, head, number). Its positions
   are rotated by `rotations` (sequence, position, number / 2, cosine and sine), if there are any. `keep` and
   `attention` are (sequence, head, position, position) of `longest` positions; `keep` has 1 for what dropout keeps. */


/* (position, number), rotated forward (turn = 1) or back (turn = -1), times `factor`. */
INLINE void rotated(const float *from, int64_t stride, const float *rotation, float turn, float factor,
                    float *restrict to, int64_t to_stride, int64_t length, int64_t size) {
    for (int64_t t = 0; t < length; t++, from += stride, to += to_stride) {
        if (!rotation) {
#pragma omp simd
            for (int64_t c = 0; c < size; c++)
                to[c] = from[c] * factor;
            continue;
        }
        const float *turns = rotation + t * size;
#pragma omp simd
        for (int64_t c = 0; c < size; c += 2) {
            const float real = turns[c] * factor, imaginary = turns[c + 1] * turn * factor;
            const float a = from[c], b = from[c + 1];
            to[c] = a * real - b * imaginary;
            to[c + 1] = a * imaginary + b * real;
        }
    }
}

/* (position, number) as (number, position). */
INLINE void turned(const float *from, int64_t stride, float *restrict to, int64_t length, int64_t size, int64_t wide) {
    for (int64_t c = 0; c < size; c++) {
        for (int64_t t = 0; t < length; t++)
            to[c * wide + t] = from[t * stride + c];
        for (int64_t t = length; t < wide; t++)
            to[c * wide + t] = 0.0f;
    }
}

/* products[i][j] = a_i . b_j, where b is (number, position): four rows at a time, so that no sum waits for another. */
INLINE void products(const float *a, int64_t stride, const float *restrict b, float *restrict to, int64_t rows,
                     int64_t size, int64_t wide) {
    for (int64_t i = 0; i < rows; i += 4) {
        const float *four[4];
        for (int64_t k = 0; k < 4; k++)
            four[k] = a + (i + k < rows ? i + k : rows - 1) * stride;
        for (int64_t begin = 0; begin < wide; begin += LANES) {
            float sums[4][LANES] = {0};
            for (int64_t c = 0; c < size; c++)
                for (int64_t k = 0; k < 4; k++)
#pragma omp simd
                    for (int64_t j = 0; j < LANES; j++)
                        sums[k][j] += four[k][c] * b[c * wide + begin + j];
            for (int64_t k = 0; k < 4 && i + k < rows; k++)
                memcpy(to + (i + k) * wide + begin, sums[k], sizeof sums[k]);
        }
    }
}

INLINE void add_times(float *restrict to, const float *restrict from, float factor, int64_t size) {
#pragma omp simd
    for (int64_t c = 0; c < size; c++)
        to[c] += from[c] * factor;
}

/* Of the first `length` of `wide` numbers, in place; the others become 0. */
INLINE void masked_softmax(float *x, int64_t length, int64_t wide) {
    float most[LANES], sum[LANES] = {0};
    for (int64_t j = 0; j < LANES; j++)
        most[j] = -INFINITY;
    for (int64_t begin = 0; begin < wide; begin += LANES)
#pragma omp simd
        for (int64_t j = 0; j < LANES; j++) {
            const float one = begin + j < length ? x[begin + j] : -INFINITY;
            most[j] = one > most[j] ? one : most[j];
        }
    for (int64_t half = LANES / 2; half > 0; half /= 2)
        for (int64_t j = 0; j < half; j++)
            most[j] = most[j + half] > most[j] ? most[j + half] : most[j];
    for (int64_t begin = 0; begin < wide; begin += LANES)
#pragma omp simd
        for (int64_t j = 0; j < LANES; j++) {
            const float one = exponential(x[begin + j] - most[0]);
            x[begin + j] = begin + j < length ? one : 0.0f;
            sum[j] += x[begin + j];
        }
    for (int64_t half = LANES / 2; half > 0; half /= 2)
        for (int64_t j = 0; j < half; j++)
            sum[j] += sum[j + half];
    const float part = 1.0f / sum[0];
    for (int64_t begin = 0; begin < wide; begin += LANES)
#pragma omp simd
        for (int64_t j = 0; j < LANES; j++)
            x[begin + j] *= part;
}

/* What dropout multiplies by. */
INLINE float factor_of(const uint8_t *kept, int64_t at, float scale) {
    return !kept ? 1.0f : kept[at] ? scale : 0.0f;
}

INLINE int64_t in_lanes(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

/* The sizes of most models are known to the compiler, which makes them twice as fast. */
#define WITH_KNOWN_SIZE(function, ...) \
    (size == 32   ? function(__VA_ARGS__, 32) \
     : size == 64 ? function(__VA_ARGS__, 64) \
     : size == 96 ? function(__VA_ARGS__, 96) \
                  : function(__VA_ARGS__, size))

INLINE int forward(const float *qkv, const float *rotations, const uint8_t *keep, float scale, const int64_t *first,
                   float *attention, float *seen, int64_t sequences, int64_t longest, int64_t heads, int64_t size) {
    const int64_t wide = in_lanes(longest), width = heads * size;
    float *memory = malloc(sizeof(float) * (2 * longest * size + (size + longest) * wide));
    if (!memory)
        return 1;
    float *query = memory, *key = query + longest * size, *keys = key + longest * size, *scores = keys + size * wide;
    const float root = 1.0f / sqrtf((float)size);
    for (int64_t s = 0; s < sequences; s++) {
        const int64_t length = first[s + 1] - first[s];
        const float *rotation = rotations ? rotations + s * longest * size : 0;
        for (int64_t h = 0; h < heads; h++) {
            const float *q = qkv + first[s] * 3 * width + h * size, *value = q + 2 * width;
            float *p = attention + (s * heads + h) * longest * longest, *out = seen + first[s] * width + h * size;
            const uint8_t *kept = keep ? keep + (s * heads + h) * longest * longest : 0;
            rotated(q, 3 * width, rotation, 1.0f, root, query, size, length, size);
            rotated(q + width, 3 * width, rotation, 1.0f, 1.0f, key, size, length, size);
            turned(key, size, keys, length, size, wide);
            products(query, size, keys, scores, length, size, wide);
            for (int64_t i = 0; i < length; i++, p += longest, out += width) {
                masked_softmax(scores + i * wide, i + 1, wide);
                memcpy(p, scores + i * wide, sizeof(float) * longest);
                memset(out, 0, sizeof(float) * size);
                for (int64_t j = 0; j <= i; j++)
                    add_times(out, value + j * 3 * width, p[j] * factor_of(kept, i * longest + j, scale), size);
            }
        }
    }
    free(memory);
    return 0;
}

INLINE int backward(const float *qkv, const float *rotations, const uint8_t *keep, float scale, const int64_t *first,
                    const float *attention, const float *of_seen, float *of_qkv, int64_t sequences, int64_t longest,
                    int64_t heads, int64_t size) {
    const int64_t wide = in_lanes(longest), width = heads * size, block = longest * size;
    float *memory = malloc(sizeof(float) * (4 * block + (size + longest) * wide));
    if (!memory)
        return 1;
    float *query = memory, *key = query + block, *of_query = key + block, *of_key = of_query + block;
    float *values = of_key + block, *of_ps = values + size * wide;
    const float root = 1.0f / sqrtf((float)size);
    for (int64_t s = 0; s < sequences; s++) {
        const int64_t length = first[s + 1] - first[s];
        const float *rotation = rotations ? rotations + s * longest * size : 0;
        for (int64_t h = 0; h < heads; h++) {
            const float *q = qkv + first[s] * 3 * width + h * size;
            const float *p = attention + (s * heads + h) * longest * longest;
            const float *of_out = of_seen + first[s] * width + h * size;
            const uint8_t *kept = keep ? keep + (s * heads + h) * longest * longest : 0;
            float *to = of_qkv + first[s] * 3 * width + h * size, *of_value = to + 2 * width;
            rotated(q, 3 * width, rotation, 1.0f, root, query, size, length, size);
            rotated(q + width, 3 * width, rotation, 1.0f, root, key, size, length, size);
            turned(q + 2 * width, 3 * width, values, length, size, wide);
            memset(of_query, 0, 2 * block * sizeof(float));
            for (int64_t t = 0; t < length; t++)
                memset(of_value + t * 3 * width, 0, sizeof(float) * size);
            products(of_out, width, values, of_ps, length, size, wide);
            for (int64_t i = 0; i < length; i++, p += longest, of_out += width) {
                float *of_p = of_ps + i * wide;
                float along = 0.0f;
                for (int64_t j = 0; j <= i; j++) {
                    const float factor = factor_of(kept, i * longest + j, scale);
                    of_p[j] *= factor;
                    along += of_p[j] * p[j];
                    add_times(of_value + j * 3 * width, of_out, p[j] * factor, size);
                }
                for (int64_t j = 0; j <= i; j++) {
                    const float of_score = p[j] * (of_p[j] - along);
                    add_times(of_query + i * size, key + j * size, of_score, size);
                    add_times(of_key + j * size, query + i * size, of_score, size);
                }
            }
            rotated(of_query, size, rotation, -1.0f, 1.0f, to, 3 * width, length, size);
            rotated(of_key, size, rotation, -1.0f, 1.0f, to + width, 3 * width, length, size);
        }
    }
    free(memory);
    return 0;
}

/* Both return 0, or 1 if there is no memory. */
int attend_forward(const float *qkv, const float *rotations, const uint8_t *keep, float scale, const int64_t *first,
                   float *attention, float *seen, int64_t sequences, int64_t longest, int64_t heads, int64_t size) {
    return WITH_KNOWN_SIZE(forward, qkv, rotations, keep, scale, first, attention, seen, sequences, longest, heads);
}

int attend_backward(const float *qkv, const float *rotations, const uint8_t *keep, float scale, const int64_t *first,
                    const float *attention, const float *of_seen, float *of_qkv, int64_t sequences, int64_t longest,
                    int64_t heads, int64_t size) {
    return WITH_KNOWN_SIZE(backward, qkv, rotations, keep, scale, first, attention, of_seen, of_qkv, sequences, longest,
                           heads);
}

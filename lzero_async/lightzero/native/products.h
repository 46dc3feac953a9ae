/* Matrix products of some rows with a matrix that lies in the cache. Widths are multiples of 32. */
#ifndef LZERO_ASYNC_PRODUCTS_H
#define LZERO_ASYNC_PRODUCTS_H

#include "common.h"

/* Sums of ROWS rows and COLUMNS columns at a time: as many as the processor has registers for. */
#ifdef __AVX512F__
#define VECTOR 16
#define ROWS 8
#else
#define VECTOR 8
#define ROWS 4
#endif
#define COLUMNS (2 * VECTOR)

typedef float Lanes __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));

INLINE Lanes *lanes(float *at) { return (Lanes *)at; }
INLINE Lanes lanes_at(const float *at) { return *(const Lanes *)at; }

/* (output, input) as (block of outputs, input, output of the block). */
INLINE void pack_outputs(const float *weight, int64_t outputs, int64_t inputs, float *to) {
    for (int64_t block = 0; block < outputs; block += COLUMNS)
        for (int64_t i = 0; i < inputs; i++)
            for (int64_t j = 0; j < COLUMNS; j++)
                *to++ = weight[(block + j) * inputs + i];
}

/* (output, input) as (block of inputs, output, input of the block). */
INLINE void pack_inputs(const float *weight, int64_t outputs, int64_t inputs, float *to) {
    for (int64_t block = 0; block < inputs; block += COLUMNS)
        for (int64_t o = 0; o < outputs; o++, to += COLUMNS)
            memcpy(to, weight + o * inputs + block, sizeof(float) * COLUMNS);
}

/* Products with `inner` numbers of each row of x. With `adds` they are added to y, else y is `bias` plus them. */
INLINE void block_of_products(const float *x, int64_t stride, const float *packed, const float *bias, float *y,
                              int64_t inner, int64_t outer, const int rows, const int adds) {
    Lanes left[ROWS], right[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        left[r] = bias ? lanes_at(bias) : (Lanes){0};
        right[r] = bias ? lanes_at(bias + VECTOR) : (Lanes){0};
    }
    for (int64_t i = 0; i < inner; i++, packed += COLUMNS) {
        const Lanes one = lanes_at(packed), other = lanes_at(packed + VECTOR);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            left[r] += one * x[r * stride + i];
            right[r] += other * x[r * stride + i];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        float *to = y + r * outer;
        if (adds) {
            left[r] += lanes_at(to);
            right[r] += lanes_at(to + VECTOR);
        }
        *lanes(to) = left[r];
        *lanes(to + VECTOR) = right[r];
    }
}

/* y (row, outer) = x (row, inner) times a packed matrix, plus `bias` (may be null). */
INLINE void products_with(const float *packed, const float *bias, const float *x, float *y, int64_t rows,
                          int64_t inner, int64_t outer) {
    for (int64_t begin = 0; begin < outer; begin += COLUMNS) {
        const float *matrix = packed + begin * inner, *start = bias ? bias + begin : 0;
        int64_t r = 0;
        for (; r + ROWS <= rows; r += ROWS)
            block_of_products(x + r * inner, inner, matrix, start, y + r * outer + begin, inner, outer, ROWS, 0);
        for (; r < rows; r++)
            block_of_products(x + r * inner, inner, matrix, start, y + r * outer + begin, inner, outer, 1, 0);
    }
}

/* sums (a's column, b's column) += a (row, a_width) transposed, times b (row, b_width); and the sums of a's columns. */
INLINE void add_products_of_rows(const float *a, const float *b, float *sums, float *column_sums, int64_t rows,
                                 int64_t a_width, int64_t b_width) {
    for (int64_t c = 0; c < a_width; c += ROWS)
        for (int64_t d = 0; d < b_width; d += COLUMNS) {
            Lanes left[ROWS], right[ROWS];
            float *to = sums + c * b_width + d;
#pragma GCC unroll 8
            for (int k = 0; k < ROWS; k++) {
                left[k] = lanes_at(to + k * b_width);
                right[k] = lanes_at(to + k * b_width + VECTOR);
            }
            for (int64_t r = 0; r < rows; r++) {
                const Lanes one = lanes_at(b + r * b_width + d), other = lanes_at(b + r * b_width + d + VECTOR);
#pragma GCC unroll 8
                for (int k = 0; k < ROWS; k++) {
                    left[k] += one * a[r * a_width + c + k];
                    right[k] += other * a[r * a_width + c + k];
                }
            }
#pragma GCC unroll 8
            for (int k = 0; k < ROWS; k++) {
                *lanes(to + k * b_width) = left[k];
                *lanes(to + k * b_width + VECTOR) = right[k];
            }
        }
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd
        for (int64_t c = 0; c < a_width; c++)
            column_sums[c] += a[r * a_width + c];
}

#endif

/* Kernels that others are made of. */
#ifndef LZERO_ASYNC_KERNELS_H
#define LZERO_ASYNC_KERNELS_H

#include <stdint.h>

int attend_forward(const float *qkv, const float *rotations, const uint8_t *keep, float scale, const int64_t *first,
                   float *attention, float *seen, int64_t sequences, int64_t longest, int64_t heads, int64_t size);
int attend_backward(const float *qkv, const float *rotations, const uint8_t *keep, float scale, const int64_t *first,
                    const float *attention, const float *of_seen, float *of_qkv, int64_t sequences, int64_t longest,
                    int64_t heads, int64_t size);
void gelu_forward(const float *x, float *y, int64_t count);
void add_norm_forward(const float *x, const float *y, const uint8_t *keep, const int64_t *rows, float scale,
                      const float *weight, const float *bias, float epsilon, float *sum, float *norm, float *means,
                      float *deviations, int64_t count, int64_t width);
void add_norm_backward(const float *of_sum, const float *of_norm, const float *sum, const float *means,
                       const float *deviations, const float *weight, const uint8_t *keep, const int64_t *rows,
                       float scale, float *of_x, float *of_y, float *of_weight, float *of_bias, int64_t count,
                       int64_t width);

#endif

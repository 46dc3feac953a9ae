#include "common.h"

void gelu_forward(const float *x, float *y, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] * gelu_gate(x[i]);
}

void gelu_backward(const float *x, const float *of_y, float *of_x, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        const float gate = gelu_gate(x[i]);
        const float slope = SLOPE * (1.0f + 3.0f * CUBIC * x[i] * x[i]);
        of_x[i] = of_y[i] * (gate + x[i] * slope * gate * (1.0f - gate));
    }
}

INLINE void softmax_gradient(const float *restrict y, const float *restrict of_y, float *restrict of_x, int64_t groups,
                      int64_t group) {
    for (int64_t g = 0; g < groups; g++, y += group, of_y += group, of_x += group) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < group; i++)
            sum += y[i] * of_y[i];
#pragma omp simd
        for (int64_t i = 0; i < group; i++)
            of_x[i] = y[i] * (of_y[i] - sum);
    }
}

/* Of each group of `group` numbers. Groups of 8 are what LightZero's states have. */
void softmax_forward(const float *x, float *y, int64_t groups, int64_t group) {
    for (int64_t g = 0; g < groups; g++, x += group, y += group)
        if (group == 8)
            softmax(x, y, 8);
        else
            softmax(x, y, group);
}

void softmax_backward(const float *y, const float *of_y, float *of_x, int64_t groups, int64_t group) {
    if (group == 8)
        softmax_gradient(y, of_y, of_x, groups, 8);
    else
        softmax_gradient(y, of_y, of_x, groups, group);
}

/* sum = x + y * keep, and norm = layer norm of that. Row r of `keep` is its row rows[r], with 1 for what is kept,
   which is multiplied by `scale`. Without `x` (null) the sum is what is kept of y; without `keep` all of y is. */
void add_norm_forward(const float *x, const float *restrict y, const uint8_t *keep, const int64_t *rows, float scale,
                      const float *restrict weight, const float *restrict bias, float epsilon,
                      float *restrict sum, float *restrict norm, float *restrict means, float *restrict deviations,
                      int64_t count, int64_t width) {
    for (int64_t r = 0; r < count; r++) {
        const float *to = y + r * width;
        float *s = sum + r * width, *n = norm + r * width;
        if (keep) {
            const uint8_t *kept = keep + rows[r] * width;
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                s[i] = kept[i] ? to[i] * scale : to[i] * 0.0f;
        } else {
            memcpy(s, to, width * sizeof *s);
        }
        if (x) {
            const float *from = x + r * width;
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                s[i] += from[i];
        }
        float mean = 0.0f, variance = 0.0f;
#pragma omp simd reduction(+ : mean)
        for (int64_t i = 0; i < width; i++)
            mean += s[i];
        mean /= width;
#pragma omp simd reduction(+ : variance)
        for (int64_t i = 0; i < width; i++)
            variance += (s[i] - mean) * (s[i] - mean);
        const float inverse = 1.0f / sqrtf(variance / width + epsilon);
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            n[i] = (s[i] - mean) * inverse * weight[i] + bias[i];
        means[r] = mean;
        deviations[r] = inverse;
    }
}

/* `of_sum` (may be null) is the gradient of the sum; it may be the same memory as `of_x`. `of_weight` and `of_bias`
   are added to. */
void add_norm_backward(const float *of_sum, const float *restrict of_norm, const float *restrict sum,
                       const float *restrict means, const float *restrict deviations, const float *restrict weight,
                       const uint8_t *keep, const int64_t *rows, float scale,
                       float *of_x, float *restrict of_y, float *restrict of_weight, float *restrict of_bias,
                       int64_t count, int64_t width) {
    for (int64_t r = 0; r < count; r++) {
        const float *s = sum + r * width, *g = of_norm + r * width;
        float *x = of_x + r * width, *y = of_y + r * width;
        const float mean = means[r], inverse = deviations[r];
        float along = 0.0f, whole = 0.0f;
#pragma omp simd reduction(+ : along, whole)
        for (int64_t i = 0; i < width; i++) {
            const float unit = (s[i] - mean) * inverse, weighted = g[i] * weight[i];
            of_weight[i] += g[i] * unit;
            of_bias[i] += g[i];
            along += weighted * unit;
            whole += weighted;
        }
        along /= width;
        whole /= width;
        if (of_sum) {
            const float *beside = of_sum + r * width;
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                x[i] = beside[i] + inverse * (g[i] * weight[i] - whole - (s[i] - mean) * inverse * along);
        } else {
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                x[i] = inverse * (g[i] * weight[i] - whole - (s[i] - mean) * inverse * along);
        }
        if (keep) {
            const uint8_t *kept = keep + rows[r] * width;
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                y[i] = kept[i] ? x[i] * scale : x[i] * 0.0f;
        } else {
            memcpy(y, x, width * sizeof *y);
        }
    }
}

#include "common.h"

/* What is done with all parameters of a model at once: tensors are given as lists of their addresses and sizes. */

double sum_of_squares(const float *const *tensors, const int64_t *sizes, int64_t count) {
    double sum = 0.0;
    for (int64_t t = 0; t < count; t++)
        for (int64_t begin = 0; begin < sizes[t]; begin += 4096) {
            const int64_t end = begin + 4096 < sizes[t] ? begin + 4096 : sizes[t];
            float part = 0.0f;
#pragma omp simd reduction(+ : part)
            for (int64_t i = begin; i < end; i++)
                part += tensors[t][i] * tensors[t][i];
            sum += part;
        }
    return sum;
}

void scale(float *const *tensors, const int64_t *sizes, int64_t count, float factor) {
    for (int64_t t = 0; t < count; t++)
#pragma omp simd
        for (int64_t i = 0; i < sizes[t]; i++)
            tensors[t][i] *= factor;
}

/* One step of AdamW. `steps` are the numbers of steps that were made, one for each tensor; they grow by one. */
void adamw_step(float *const *parameters, const float *const *gradients, float *const *means, float *const *squares,
                float *const *steps, const int64_t *sizes, int64_t count, double rate, double beta, double beta_squares,
                double epsilon, double decay) {
    const float keep = (float)(1.0 - rate * decay), b = (float)beta, other_b = (float)(1.0 - beta);
    const float c = (float)beta_squares, other_c = (float)(1.0 - beta_squares), tiny = (float)epsilon;
    for (int64_t t = 0; t < count; t++) {
        const double step = (double)(*steps[t] += 1.0f);
        const float size = (float)(rate / (1.0 - pow(beta, step)));
        const float root = (float)(1.0 / sqrt(1.0 - pow(beta_squares, step)));
        float *restrict p = parameters[t], *restrict m = means[t], *restrict v = squares[t];
        const float *restrict g = gradients[t];
#pragma omp simd
        for (int64_t i = 0; i < sizes[t]; i++) {
            m[i] = b * m[i] + other_b * g[i];
            v[i] = c * v[i] + other_c * g[i] * g[i];
            p[i] = p[i] * keep - size * m[i] / (sqrtf(v[i]) * root + tiny);
        }
    }
}

/* target * (1 - theta) + learned * theta, each product rounded, as torch does it one after the other. */
__attribute__((optimize("fp-contract=off"))) void follow(float *const *targets, const float *const *learned,
                                                         const int64_t *sizes, int64_t count, double theta) {
    const float keep = (float)(1.0 - theta), take = (float)theta;
    for (int64_t t = 0; t < count; t++) {
        float *restrict to = targets[t];
        const float *restrict from = learned[t];
#pragma omp simd
        for (int64_t i = 0; i < sizes[t]; i++)
            to[i] = to[i] * keep + from[i] * take;
    }
}

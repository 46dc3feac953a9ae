#include "products.h"

#include <stdlib.h>

#define AT_A_TIME 128 /* inputs */

/* A linear layer whose sums are taken in the order that MKL takes them in: of AT_A_TIME inputs one after the other, and
   these are added to the bias. So the results can be the same to the last bit; whether they are is found out by trying.
   `weight` is (output, input), outputs are a multiple of 32. Returns 0, or 1 if there is no memory. */
int exact_linear(const float *weight, const float *bias, const float *x, float *y, int64_t rows, int64_t inputs,
                 int64_t outputs) {
    float *packed = malloc(sizeof(float) * inputs * outputs);
    if (!packed)
        return 1;
    pack_outputs(weight, outputs, inputs, packed);
    for (int64_t r = 0; r < rows; r++)
        memcpy(y + r * outputs, bias, sizeof(float) * outputs);
    for (int64_t from = 0; from < inputs; from += AT_A_TIME) {
        const int64_t count = inputs - from < AT_A_TIME ? inputs - from : AT_A_TIME;
        for (int64_t begin = 0; begin < outputs; begin += COLUMNS) {
            const float *matrix = packed + begin * inputs + from * COLUMNS;
            int64_t r = 0;
            for (; r + ROWS <= rows; r += ROWS)
                block_of_products(x + r * inputs + from, inputs, matrix, 0, y + r * outputs + begin, count, outputs,
                                  ROWS, 1);
            for (; r < rows; r++)
                block_of_products(x + r * inputs + from, inputs, matrix, 0, y + r * outputs + begin, count, outputs, 1,
                                  1);
        }
    }
    free(packed);
    return 0;
}

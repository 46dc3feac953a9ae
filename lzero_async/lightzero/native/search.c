#include "common.h"

#include <stdlib.h>

/* One simulation of a search: an action, and the state that it leads to, for each of a few trees.

   What it computes is `expand` of lightzero/search/token_step.py, but for the numbers that rewards and values stand for:
   there the last bit can matter, and is torch's. */

typedef struct {
    const float *weight; /* in blocks of LANES outputs: (block, input, output of the block), zeros behind the last */
    const float *bias;   /* zeros behind the last */
    int64_t inputs, outputs;
} Linear;

typedef struct {
    const float *weight, *bias;
    float epsilon;
} Norm;

typedef struct {
    Norm first;
    Linear query_key_value, project;
    Norm second;
    Linear widen, narrow;
} Block;

typedef struct {
    Linear hidden, one, other; /* of two heads; their first layers are one */
} Heads;

typedef struct {
    int64_t layers, heads, size, context, places, group;
    const float *rotations;  /* (position, number / 2, cosine and sine), or null */
    const float *positions;  /* (position, number) that are added to a token, or null */
    const float *correction; /* (layer, key or value, head, position, number) that a moved context gains, or null */
    const float *embeddings; /* of actions */
    const Block *blocks;
    Norm last;
    Heads reward_and_state, policy_and_value;
} Model;

/* What one row of a simulation reads and writes. */
typedef struct {
    int64_t read, write, action, position, length, keep_from, keep;
} Row;

#define ROWS 8 /* at a time */

INLINE int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

/* y (row, outputs, padded) of x (row, inputs). Rows are whole eights. */
static void linear(const Linear *layer, const float *x, int64_t stride, float *y, int64_t rows) {
    const int64_t inputs = layer->inputs, wide = padded(layer->outputs);
    for (int64_t begin = 0; begin < wide; begin += LANES) {
        const float *weight = layer->weight + begin * inputs;
        for (int64_t r = 0; r < rows; r += ROWS) {
            float sums[ROWS][LANES];
            for (int64_t k = 0; k < ROWS; k++)
                memcpy(sums[k], layer->bias + begin, sizeof sums[k]);
            for (int64_t i = 0; i < inputs; i++)
                for (int64_t k = 0; k < ROWS; k++)
#pragma omp simd
                    for (int64_t j = 0; j < LANES; j++)
                        sums[k][j] += x[(r + k) * stride + i] * weight[i * LANES + j];
            for (int64_t k = 0; k < ROWS; k++)
                memcpy(y + (r + k) * wide + begin, sums[k], sizeof sums[k]);
        }
    }
}

static void norm(const Norm *layer, const float *x, float *y, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        float mean = 0.0f, variance = 0.0f;
#pragma omp simd reduction(+ : mean)
        for (int64_t i = 0; i < width; i++)
            mean += x[i];
        mean /= width;
#pragma omp simd reduction(+ : variance)
        for (int64_t i = 0; i < width; i++)
            variance += (x[i] - mean) * (x[i] - mean);
        const float inverse = 1.0f / sqrtf(variance / width + layer->epsilon);
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            y[i] = (x[i] - mean) * inverse * layer->weight[i] + layer->bias[i];
    }
}

static void gelu(float *x, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        x[i] *= gelu_gate(x[i]);
}

static void add(float *x, const float *y, int64_t y_stride, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            x[r * width + i] += y[r * y_stride + i];
}

static void rotate(float *x, const float *turns, int64_t heads, int64_t size) {
    for (int64_t h = 0; h < heads; h++, x += size)
#pragma omp simd
        for (int64_t c = 0; c < size; c += 2) {
            const float a = x[c], b = x[c + 1];
            x[c] = a * turns[c] - b * turns[c + 1];
            x[c + 1] = a * turns[c + 1] + b * turns[c];
        }
}

/* Of one row: keys and values are (head, position, number) of `context` positions, of which `length` count. Before them
   come `zeros` positions whose keys and values are zero, which are not masked, as in LightZero. */
static void attend(const Model *model, const float *query, const float *keys, const float *values, int64_t length,
                   int64_t zeros, float *scores, float *to) {
    const int64_t size = model->size, stride = model->context * size;
    const float root = 1.0f / sqrtf((float)size);
    for (int64_t h = 0; h < model->heads; h++, query += size, keys += stride, values += stride, to += size) {
        for (int64_t j = 0; j < zeros; j++)
            scores[j] = 0.0f;
        for (int64_t j = 0; j < length; j++) {
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (int64_t c = 0; c < size; c++)
                sum += query[c] * keys[j * size + c];
            scores[zeros + j] = sum * root;
        }
        softmax(scores, scores, zeros + length);
        memset(to, 0, sizeof(float) * size);
        for (int64_t j = 0; j < length; j++)
#pragma omp simd
            for (int64_t c = 0; c < size; c++)
                to[c] += scores[zeros + j] * values[j * size + c];
    }
}

/* Memory of one simulation, for `rows` rows. */
typedef struct {
    float *kv; /* (row, layer, key or value, head, position, number) */
    float *x, *normed, *wide, *narrow, *seen, *scores;
} Memory;

/* One token of each row after those in `kv`, where its own keys and values are written. x becomes its output. */
static void token_pass(const Model *model, const Row *row, Memory *m, int64_t rows, int64_t all, int64_t passed,
                       int64_t longest) {
    const int64_t size = model->size, width = model->heads * size, one = model->context * width;
    for (int64_t layer = 0; layer < model->layers; layer++) {
        const Block *block = model->blocks + layer;
        norm(&block->first, m->x, m->normed, rows, width);
        linear(&block->query_key_value, m->normed, width, m->wide, all);
        const int64_t stride = padded(3 * width);
        for (int64_t r = 0; r < rows; r++) {
            float *query = m->wide + r * stride, *key = query + width, *value = key + width;
            if (model->rotations) {
                const float *turns = model->rotations + (row[r].position + passed) * size;
                rotate(query, turns, model->heads, size);
                rotate(key, turns, model->heads, size);
            }
            float *keys = m->kv + (r * model->layers + layer) * 2 * one, *values = keys + one;
            const int64_t at = row[r].length + passed;
            for (int64_t h = 0; h < model->heads; h++) {
                memcpy(keys + (h * model->context + at) * size, key + h * size, sizeof(float) * size);
                memcpy(values + (h * model->context + at) * size, value + h * size, sizeof(float) * size);
            }
            attend(model, query, keys, values, at + 1, longest - row[r].length, m->scores, m->seen + r * width);
        }
        linear(&block->project, m->seen, width, m->narrow, all);
        add(m->x, m->narrow, padded(width), rows, width);
        norm(&block->second, m->x, m->normed, rows, width);
        linear(&block->widen, m->normed, width, m->wide, all);
        gelu(m->wide, all * padded(block->widen.outputs));
        linear(&block->narrow, m->wide, padded(block->widen.outputs), m->narrow, all);
        add(m->x, m->narrow, padded(width), rows, width);
    }
    norm(&model->last, m->x, m->normed, rows, width);
}

/* Two heads of `normed`, side by side in `wide` behind their hidden layer. */
static void heads(const Heads *both, int64_t width, Memory *m, int64_t rows, float **one, float **other) {
    const int64_t stride = padded(both->hidden.outputs);
    linear(&both->hidden, m->normed, width, m->wide, rows);
    gelu(m->wide, rows * stride);
    *one = m->wide + rows * stride;
    *other = *one + rows * padded(both->one.outputs);
    linear(&both->one, m->wide, stride, *one, rows);
    linear(&both->other, m->wide + width, stride, *other, rows);
}

static void copy_rows(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t rows, int64_t count) {
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * to_stride, from + r * from_stride, sizeof(float) * count);
}

static void start(const Model *model, const Row *row, int64_t passed, float *x, int64_t rows) {
    const int64_t width = model->heads * model->size;
    if (model->positions)
        for (int64_t r = 0; r < rows; r++)
            add(x + r * width, model->positions + (row[r].position + passed) * width, 0, 1, width);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* `pool` is (layer, key or value, place, head, position, number). The other outputs are of one row after the other,
   those of rewards and values behind each other. Returns 0, or 1 if there is no memory. */
int expand_trees(const Model *model, float *pool, const Row *row, int64_t rows, float *states, float *policies,
                 float *rewards_and_values) {
    const int64_t width = model->heads * model->size, all = (rows + ROWS - 1) / ROWS * ROWS;
    const int64_t one = model->context * width, per_row = model->layers * 2 * one;
    const Heads *first = &model->reward_and_state, *second = &model->policy_and_value;
    int64_t wide = larger(padded(3 * width), padded(model->blocks[0].widen.outputs));
    wide = larger(wide, padded(2 * width) + padded(first->one.outputs) + padded(first->other.outputs));
    wide = larger(wide, padded(2 * width) + padded(second->one.outputs) + padded(second->other.outputs));
    float *memory = calloc(all * (per_row + 3 * width + wide + padded(width)) + 2 * model->context, sizeof(float));
    if (!memory)
        return 1;
    Memory m = {.kv = memory, .x = memory + all * per_row};
    m.normed = m.x + all * width;
    m.seen = m.normed + all * width;
    m.wide = m.seen + all * width;
    m.narrow = m.wide + all * wide;
    m.scores = m.narrow + all * padded(width);

    int64_t longest = 0;
    for (int64_t r = 0; r < rows; r++) {
        longest = larger(longest, row[r].length);
        for (int64_t part = 0; part < model->layers * 2; part++)
            for (int64_t h = 0; h < model->heads; h++)
                memcpy(m.kv + r * per_row + part * one + h * model->context * model->size,
                       pool + (part * model->places + row[r].read) * one + h * model->context * model->size,
                       sizeof(float) * row[r].length * model->size);
        memcpy(m.x + r * width, model->embeddings + row[r].action * width, sizeof(float) * width);
    }
    float *reward, *state, *policy, *value;
    start(model, row, 0, m.x, rows);
    token_pass(model, row, &m, rows, all, 0, longest);
    heads(first, width, &m, all, &reward, &state);
    const int64_t categories = first->one.outputs;
    copy_rows(reward, padded(categories), rewards_and_values, categories, rows, categories);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += model->group)
            softmax(state + r * padded(width) + i, state + r * padded(width) + i, model->group);
    copy_rows(state, padded(width), states, width, rows, width);
    copy_rows(state, padded(width), m.x, width, rows, width);
    start(model, row, 1, m.x, rows);
    token_pass(model, row, &m, rows, all, 1, longest);
    heads(second, width, &m, all, &policy, &value);
    const int64_t actions = second->one.outputs;
    copy_rows(policy, padded(actions), policies, actions, rows, actions);
    copy_rows(value, padded(categories), rewards_and_values + rows * categories, categories, rows, categories);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t part = 0; part < model->layers * 2; part++)
            for (int64_t h = 0; h < model->heads; h++) {
                const int64_t skip = h * model->context * model->size, count = row[r].keep * model->size;
                float *target = pool + (part * model->places + row[r].write) * one + skip;
                memcpy(target, m.kv + r * per_row + part * one + skip + row[r].keep_from * model->size,
                       sizeof(float) * count);
                if (row[r].keep_from && model->correction)
                    add(target, model->correction + (part * model->heads + h) * count, 0, 1, count);
            }
    free(memory);
    return 0;
}

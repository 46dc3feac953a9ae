#include "kernels.h"
#include "products.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* A whole transformer in training, forward and backward.

   Sequences do not look at each other, so the work is cut into tasks of some sequences, which threads take one after the
   other. Within a task a few sequences at a time go through all layers, so that what lies between two layers stays in
   the cache. Each task has gradients of its own, which are added up in the tasks' order: results do not depend on
   which thread did what. */

#define TASKS 8
#define AT_ONCE 16 /* sequences */

enum { NORM_1 = 0, QKV = 2, PROJECT = 4, NORM_2 = 6, WIDEN = 8, NARROW = 10, PER_LAYER = 12 };

/* One dropout: what it keeps of (sequence, token, number), or null. */
typedef struct {
    const uint8_t *mask;
    float scale;
} Kept;

typedef struct {
    int64_t sequences, longest, layers, heads, width, inner;
    const int64_t *first;       /* rows of each sequence: first[s] to first[s + 1] */
    const int64_t *rows;        /* of each row: its place among (sequence, token) */
    const float *rotations;     /* as in attention.c */
    const float *const *weights; /* weight and bias of each part of each layer, then of the last norm */
    const float *epsilons;      /* of two norms of each layer, then of the last one */
    const Kept *kept;           /* of the input, then of attention, its output and the MLP of each layer */
    /* Kept from forward to backward, for each layer: */
    float *inputs;    /* (layer + 1, row, width) */
    float *qkv;       /* (layer, row, 3 * width) */
    float *attention; /* (layer, sequence, head, token, token) */
    float *seen;      /* (layer, row, width) */
    float *between;   /* (layer, row, width): behind attention */
    float *hidden;    /* (layer, row, inner): before GELU */
    int64_t threads;
} Transformer;

typedef struct {
    const Transformer *t;
    const float *from;
    float *to;
    const float *packed; /* all matrices, one behind the other, as forward or backward likes them */
    float *gradients;    /* (task, all weights) or null */
    int64_t weights;     /* how many numbers they are */
    atomic_int next, failed;
} Work;

INLINE int64_t matrix_size(const Transformer *t, int part) {
    const int64_t w = t->width;
    return part == QKV ? 3 * w * w : part == PROJECT ? w * w : w * t->inner;
}

/* Where the gradient of a layer's part begins among those of all weights; `layer` may be `layers`, for the last norm. */
INLINE int64_t place_of(const Transformer *t, int64_t layer, int part) {
    const int64_t w = t->width, inner = t->inner;
    const int64_t sizes[PER_LAYER / 2] = {2 * w, 3 * w * w + 3 * w, w * w + w, 2 * w, w * inner + inner, w * inner + w};
    int64_t all = 0, before = 0;
    for (int p = 0; p < PER_LAYER / 2; p++) {
        before += p < part / 2 ? sizes[p] : 0;
        all += sizes[p];
    }
    return layer * all + before;
}

INLINE int64_t packed_at(const Transformer *t, int64_t layer, int part) {
    int64_t place = 0, all = 0;
    for (int p = QKV; p < PER_LAYER; p++)
        if (p == QKV || p == PROJECT || p == WIDEN || p == NARROW) {
            place += p < part ? matrix_size(t, p) : 0;
            all += matrix_size(t, p);
        }
    return layer * all + place;
}

/* Some sequences, and memory for what lies between their layers. */
typedef struct {
    int64_t sequence, sequences, row, rows;
    int64_t first[AT_ONCE + 1];
    float *x, *y, *norm, *means, *deviations, *wide, *wide_too;
} Few;

INLINE void open_few(const Transformer *t, int64_t sequence, int64_t sequences, float *memory, Few *few) {
    few->sequence = sequence;
    few->sequences = sequences;
    few->row = t->first[sequence];
    few->rows = t->first[sequence + sequences] - few->row;
    for (int64_t s = 0; s <= sequences; s++)
        few->first[s] = t->first[sequence + s] - few->row;
    const int64_t most = AT_ONCE * t->longest, wide = t->inner > 3 * t->width ? t->inner : 3 * t->width;
    few->x = memory;
    few->y = few->x + most * t->width;
    few->norm = few->y + most * t->width;
    few->means = few->norm + most * t->width;
    few->deviations = few->means + most;
    few->wide = few->deviations + most;
    few->wide_too = few->wide + most * wide;
}

INLINE int64_t memory_of_few(const Transformer *t) {
    const int64_t wide = t->inner > 3 * t->width ? t->inner : 3 * t->width;
    return AT_ONCE * t->longest * (3 * t->width + 2 + 2 * wide);
}

INLINE float *part_of(float *all, const Transformer *t, int64_t layer, const Few *few, int64_t width) {
    return all + (layer * t->first[t->sequences] + few->row) * width;
}

INLINE int64_t attention_at(const Transformer *t, int64_t layer, const Few *few) {
    return (layer * t->sequences + few->sequence) * t->heads * t->longest * t->longest;
}

INLINE const float *rotations_of(const Transformer *t, const Few *few) {
    return t->rotations ? t->rotations + few->sequence * t->longest * (t->width / t->heads) : 0;
}

INLINE const uint8_t *mask_of_attention(const Transformer *t, const Kept *kept, const Few *few) {
    return kept->mask ? kept->mask + attention_at(t, 0, few) : 0;
}

/* x + what is kept of y, and its norm. */
INLINE void add_norm(const Transformer *t, Few *few, const float *x, const float *y, const Kept *kept,
                     const float *const *weights, float epsilon, float *sum, float *norm) {
    add_norm_forward(x, y, kept->mask, t->rows + few->row, kept->scale, weights[0], weights[1], epsilon, sum, norm,
                     few->means, few->deviations, few->rows, t->width);
}

static int forward_few(const Work *work, Few *few) {
    const Transformer *t = work->t;
    const int64_t w = t->width, rows = few->rows;
    const float *const *last = t->weights + t->layers * PER_LAYER;
    const Kept *kept = t->kept;
    float *x = part_of(t->inputs, t, 0, few, w);
    add_norm(t, few, 0, work->from + few->row * w, kept++, t->weights, t->epsilons[0], x, few->norm);
    for (int64_t layer = 0; layer < t->layers; layer++, kept += 3) {
        const float *const *weights = t->weights + layer * PER_LAYER;
        float *qkv = part_of(t->qkv, t, layer, few, 3 * w), *seen = part_of(t->seen, t, layer, few, w);
        float *between = part_of(t->between, t, layer, few, w), *hidden = part_of(t->hidden, t, layer, few, t->inner);
        float *next = part_of(t->inputs, t, layer + 1, few, w);
        products_with(work->packed + packed_at(t, layer, QKV), weights[QKV + 1], few->norm, qkv, rows, w, 3 * w);
        if (attend_forward(qkv, rotations_of(t, few), mask_of_attention(t, kept, few), kept->scale, few->first,
                           t->attention + attention_at(t, layer, few), seen, few->sequences, t->longest, t->heads,
                           w / t->heads))
            return 1;
        products_with(work->packed + packed_at(t, layer, PROJECT), weights[PROJECT + 1], seen, few->y, rows, w, w);
        add_norm(t, few, x, few->y, kept + 1, weights + NORM_2, t->epsilons[2 * layer + 1], between, few->norm);
        products_with(work->packed + packed_at(t, layer, WIDEN), weights[WIDEN + 1], few->norm, hidden, rows, w,
                      t->inner);
        gelu_forward(hidden, few->wide, rows * t->inner);
        products_with(work->packed + packed_at(t, layer, NARROW), weights[NARROW + 1], few->wide, few->y, rows,
                      t->inner, w);
        const int is_last = layer + 1 == t->layers;
        add_norm(t, few, between, few->y, kept + 2, is_last ? last : weights + PER_LAYER, t->epsilons[2 * layer + 2],
                 next, is_last ? work->to + few->row * w : few->norm);
        x = next;
    }
    return 0;
}

/* The norm of `sum` once more, with what its gradient needs. */
INLINE void norm_again(const Transformer *t, Few *few, const float *sum, const float *const *weights, float epsilon) {
    static const Kept all = {0, 1.0f};
    add_norm(t, few, 0, sum, &all, weights, epsilon, few->y, few->norm);
}

/* few->x, the gradient of a sum, gains what comes through its norm; few->y is what of it dropout lets through. */
INLINE void add_norm_gradient(const Transformer *t, Few *few, const float *of_sum, const float *of_norm,
                              const float *sum, const float *weight, const Kept *kept, float *gradients) {
    add_norm_backward(of_sum, of_norm, sum, few->means, few->deviations, weight, kept->mask, t->rows + few->row,
                      kept->scale, few->x, few->y, gradients, gradients + t->width, few->rows, t->width);
}

/* The gradients of a matrix and of its bias, which lies behind it. */
INLINE void add_matrix_gradient(const Transformer *t, int64_t layer, int part, const float *of_y, const float *x,
                                float *gradients, int64_t rows, int64_t outputs, int64_t inputs) {
    float *to = gradients + place_of(t, layer, part);
    add_products_of_rows(of_y, x, to, to + outputs * inputs, rows, outputs, inputs);
}

static int backward_few(const Work *work, Few *few, float *gradients) {
    const Transformer *t = work->t;
    const int64_t w = t->width, rows = few->rows, end = t->layers;
    const float *const *last = t->weights + end * PER_LAYER;
    const float *x = part_of(t->inputs, t, end, few, w);
    norm_again(t, few, x, last, t->epsilons[2 * end]);
    const Kept *kept = t->kept + 3 * end - 2;
    add_norm_gradient(t, few, 0, work->from + few->row * w, x, last[0], kept + 2, gradients + place_of(t, end, NORM_1));
    for (int64_t layer = end - 1; layer >= 0; layer--) {
        const float *const *weights = t->weights + layer * PER_LAYER;
        const float *packed = work->packed, *qkv = part_of(t->qkv, t, layer, few, 3 * w);
        const float *between = part_of(t->between, t, layer, few, w), *seen = part_of(t->seen, t, layer, few, w);
        x = part_of(t->inputs, t, layer, few, w);
        kept = t->kept + 1 + 3 * layer;
        /* few->y is the gradient of the MLP's output, few->x that of what it was added to */
        products_with(packed + packed_at(t, layer, NARROW), 0, few->y, few->wide, rows, w, t->inner);
        gelu_again(part_of(t->hidden, t, layer, few, t->inner), few->wide, few->wide_too, rows * t->inner);
        add_matrix_gradient(t, layer, NARROW, few->y, few->wide_too, gradients, rows, w, t->inner);
        norm_again(t, few, between, weights + NORM_2, t->epsilons[2 * layer + 1]);
        add_matrix_gradient(t, layer, WIDEN, few->wide, few->norm, gradients, rows, t->inner, w);
        products_with(packed + packed_at(t, layer, WIDEN), 0, few->wide, few->norm, rows, t->inner, w);
        add_norm_gradient(t, few, few->x, few->norm, between, weights[NORM_2], kept + 1,
                          gradients + place_of(t, layer, NORM_2));
        add_matrix_gradient(t, layer, PROJECT, few->y, seen, gradients, rows, w, w);
        products_with(packed + packed_at(t, layer, PROJECT), 0, few->y, few->norm, rows, w, w);
        if (attend_backward(qkv, rotations_of(t, few), mask_of_attention(t, kept, few), kept->scale, few->first,
                            t->attention + attention_at(t, layer, few), few->norm, few->wide, few->sequences,
                            t->longest, t->heads, w / t->heads))
            return 1;
        norm_again(t, few, x, weights + NORM_1, t->epsilons[2 * layer]);
        add_matrix_gradient(t, layer, QKV, few->wide, few->norm, gradients, rows, 3 * w, w);
        products_with(packed + packed_at(t, layer, QKV), 0, few->wide, few->norm, rows, 3 * w, w);
        add_norm_gradient(t, few, few->x, few->norm, x, weights[NORM_1], kept - 1,
                          gradients + place_of(t, layer, NORM_1));
    }
    memcpy(work->to + few->row * w, few->y, sizeof(float) * rows * w);
    return 0;
}

static void *take_tasks(void *argument) {
    Work *work = argument;
    const Transformer *t = work->t;
    float *memory = malloc(sizeof(float) * memory_of_few(t));
    if (!memory)
        work->failed = 1;
    for (int task; !work->failed && (task = work->next++) < TASKS;) {
        const int64_t begin = t->sequences * task / TASKS, end = t->sequences * (task + 1) / TASKS;
        float *gradients = work->gradients ? work->gradients + task * work->weights : 0;
        for (int64_t s = begin; s < end; s += AT_ONCE) {
            Few few;
            open_few(t, s, end - s < AT_ONCE ? end - s : AT_ONCE, memory, &few);
            if (gradients ? backward_few(work, &few, gradients) : forward_few(work, &few))
                work->failed = 1;
        }
    }
    free(memory);
    return 0;
}

/* All tasks, with the help of some threads if they can be had. */
static int run(Work *work) {
    enum { MOST = TASKS - 1 };
    pthread_t helpers[MOST];
    int64_t helping = 0;
    while (helping < MOST && helping < work->t->threads - 1 && !pthread_create(helpers + helping, 0, take_tasks, work))
        helping++;
    take_tasks(work);
    for (int64_t h = 0; h < helping; h++)
        pthread_join(helpers[h], 0);
    return work->failed;
}

static float *packed_weights(const Transformer *t, int for_backward) {
    float *all = malloc(sizeof(float) * packed_at(t, t->layers, NORM_1));
    const int64_t w = t->width;
    for (int64_t layer = 0; all && layer < t->layers; layer++)
        for (int part = QKV; part < PER_LAYER; part++) {
            if (part != QKV && part != PROJECT && part != WIDEN && part != NARROW)
                continue;
            const int64_t outputs = part == QKV ? 3 * w : part == WIDEN ? t->inner : w;
            const int64_t inputs = part == NARROW ? t->inner : w;
            float *to = all + packed_at(t, layer, part);
            const float *weight = t->weights[layer * PER_LAYER + part];
            if (for_backward)
                pack_inputs(weight, outputs, inputs, to);
            else
                pack_outputs(weight, outputs, inputs, to);
        }
    return all;
}

/* `from` and `to` are (row, width). Both return 0, or 1 if there is no memory. */
int transformer_forward(const Transformer *t, const float *from, float *to) {
    float *packed = packed_weights(t, 0);
    Work work = {.t = t, .from = from, .to = to, .packed = packed};
    const int failed = !packed || run(&work);
    free(packed);
    return failed;
}

/* `gradients` are of all weights, in their order. */
int transformer_backward(const Transformer *t, const float *of_to, float *of_from, float *gradients) {
    const int64_t count = place_of(t, t->layers, NORM_1) + 2 * t->width;
    float *packed = packed_weights(t, 1), *of_tasks = calloc(TASKS * count, sizeof(float));
    Work work = {.t = t, .from = of_to, .to = of_from, .packed = packed, .gradients = of_tasks, .weights = count};
    const int failed = !packed || !of_tasks || run(&work);
    if (!failed)
        for (int64_t begin = 0; begin < count; begin += 1024) {
            const int64_t end = begin + 1024 < count ? begin + 1024 : count;
            memcpy(gradients + begin, of_tasks + begin, sizeof(float) * (end - begin));
            for (int64_t task = 1; task < TASKS; task++)
#pragma omp simd
                for (int64_t i = begin; i < end; i++)
                    gradients[i] += of_tasks[task * count + i];
        }
    free(packed);
    free(of_tasks);
    return failed;
}

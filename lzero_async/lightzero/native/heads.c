#include "products.h"

#include <stdlib.h>

/* A head in training: a linear layer, GELU and another linear layer, and how far its output is from what was wanted, one
   loss for each row.

   CATEGORIES: the output is the logits of a distribution; the loss is its cross entropy with the target, and its own
   entropy is told, too. The others: the output is a state, the softmax of each group of numbers. GROUPS compares each
   group by its Kullback-Leibler divergence, SQUARES each number. */

enum { CATEGORIES, GROUPS, SQUARES };

#define AT_ONCE 128 /* rows */
#define WHOLE 32    /* outputs are padded to multiples of it */
#define SMALL 1e-6f /* is added to states before their logarithm */

typedef struct {
    int64_t kind, group, rows, stride, width, hidden, outputs;
    const float *x;       /* (row, width), each row `stride` behind the one before */
    const float *widen, *widen_bias, *narrow, *narrow_bias;
    const float *targets; /* (row, outputs) */
    float *inside;        /* (row, hidden): before GELU; kept for backward, as are the following */
    float *results;       /* (row, outputs, padded): logits or states */
    float *sizes;         /* (row): the logarithm of the sum of their exponentials */
    float *entropies;     /* (row) */
} Head;

INLINE int64_t padded(int64_t outputs) { return (outputs + WHOLE - 1) / WHOLE * WHOLE; }

/* Weights of the second layer with zeros behind its last output, and memory for some rows. */
typedef struct {
    float *memory, *narrow, *narrow_bias, *packed_widen, *packed_narrow, *x, *wide, *wide_too, *results;
} Room;

static int open_room(const Head *h, int for_backward, Room *room) {
    const int64_t outputs = padded(h->outputs), matrix = outputs * h->hidden;
    room->memory = calloc(2 * matrix + outputs + h->hidden * h->width + AT_ONCE * (h->width + 2 * h->hidden + outputs),
                          sizeof(float));
    if (!room->memory)
        return 1;
    room->narrow = room->memory;
    room->packed_narrow = room->narrow + matrix;
    room->narrow_bias = room->packed_narrow + matrix;
    room->packed_widen = room->narrow_bias + outputs;
    room->x = room->packed_widen + h->hidden * h->width;
    room->wide = room->x + AT_ONCE * h->width;
    room->wide_too = room->wide + AT_ONCE * h->hidden;
    room->results = room->wide_too + AT_ONCE * h->hidden;
    memcpy(room->narrow, h->narrow, sizeof(float) * h->outputs * h->hidden);
    memcpy(room->narrow_bias, h->narrow_bias, sizeof(float) * h->outputs);
    if (for_backward) {
        pack_inputs(h->widen, h->hidden, h->width, room->packed_widen);
        pack_inputs(room->narrow, outputs, h->hidden, room->packed_narrow);
    } else {
        pack_outputs(h->widen, h->hidden, h->width, room->packed_widen);
        pack_outputs(room->narrow, outputs, h->hidden, room->packed_narrow);
    }
    return 0;
}

INLINE void copy_inputs(const Head *h, int64_t begin, int64_t rows, float *to) {
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * h->width, h->x + (begin + r) * h->stride, sizeof(float) * h->width);
}

INLINE void distribution(const Head *h, int64_t row, const float *logits, float *loss) {
    const float *target = h->targets + row * h->outputs;
    float most = logits[0], sum = 0.0f, crossed = 0.0f, wanted = 0.0f, mean = 0.0f;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < h->outputs; i++)
        most = logits[i] > most ? logits[i] : most;
#pragma omp simd reduction(+ : sum, crossed, wanted, mean)
    for (int64_t i = 0; i < h->outputs; i++) {
        const float below = logits[i] - most, share = exponential(below);
        sum += share;
        mean += share * below;
        crossed += target[i] * below;
        wanted += target[i];
    }
    const float size = logf(sum);
    h->sizes[row] = most + size;
    h->entropies[row] = size - mean / sum;
    *loss = size * wanted - crossed;
}

INLINE void of_distribution(const Head *h, int64_t row, float of_loss, float of_entropy, float *restrict of_logits) {
    const float *target = h->targets + row * h->outputs, *logits = h->results + row * padded(h->outputs);
    const float size = h->sizes[row], entropy = h->entropies[row];
    float wanted = 0.0f;
#pragma omp simd reduction(+ : wanted)
    for (int64_t i = 0; i < h->outputs; i++)
        wanted += target[i];
#pragma omp simd
    for (int64_t i = 0; i < h->outputs; i++) {
        const float logarithm = logits[i] - size, share = exponential(logarithm);
        of_logits[i] = of_loss * (share * wanted - target[i]) - of_entropy * share * (logarithm + entropy);
    }
}

/* The softmax of each group, in place, and the loss. */
INLINE void state(const Head *h, int64_t row, const int64_t group, float *x, float *loss) {
    const float *target = h->targets + row * h->outputs;
    float total = 0.0f;
    for (int64_t begin = 0; begin < h->outputs; begin += group) {
        float apart = 0.0f;
        softmax(x + begin, x + begin, group);
#pragma omp simd reduction(+ : apart)
        for (int64_t i = begin; i < begin + group; i++) {
            const float share = x[i], wanted = target[i];
            apart += h->kind == SQUARES
                         ? (share - wanted) * (share - wanted)
                         : (wanted + SMALL) * (logarithm(wanted + SMALL) - logarithm(share + SMALL));
        }
        total += apart;
    }
    *loss = total / (h->kind == SQUARES ? h->outputs : h->outputs / group);
}

INLINE void of_state(const Head *h, int64_t row, const int64_t group, float of_loss, float *restrict of_x) {
    const float *target = h->targets + row * h->outputs, *shares = h->results + row * padded(h->outputs);
    const float each = of_loss / (h->kind == SQUARES ? h->outputs : h->outputs / group);
    for (int64_t begin = 0; begin < h->outputs; begin += group) {
        float along = 0.0f;
#pragma omp simd reduction(+ : along)
        for (int64_t i = begin; i < begin + group; i++) {
            const float share = shares[i], wanted = target[i];
            of_x[i] = h->kind == SQUARES ? 2.0f * each * (share - wanted) : -each * (wanted + SMALL) / (share + SMALL);
            along += of_x[i] * share;
        }
#pragma omp simd
        for (int64_t i = begin; i < begin + group; i++)
            of_x[i] = shares[i] * (of_x[i] - along);
    }
}

/* Both return 0, or 1 if there is no memory. */
int head_forward(const Head *h, float *losses) {
    const int64_t outputs = padded(h->outputs);
    Room room;
    if (open_room(h, 0, &room))
        return 1;
    for (int64_t begin = 0; begin < h->rows; begin += AT_ONCE) {
        const int64_t rows = h->rows - begin < AT_ONCE ? h->rows - begin : AT_ONCE;
        float *inside = h->inside + begin * h->hidden, *results = h->results + begin * outputs;
        copy_inputs(h, begin, rows, room.x);
        products_with(room.packed_widen, h->widen_bias, room.x, inside, rows, h->width, h->hidden);
#pragma omp simd
        for (int64_t i = 0; i < rows * h->hidden; i++)
            room.wide[i] = inside[i] * gelu_gate(inside[i]);
        products_with(room.packed_narrow, room.narrow_bias, room.wide, results, rows, h->hidden, outputs);
        for (int64_t r = 0; r < rows; r++) {
            if (h->kind == CATEGORIES)
                distribution(h, begin + r, results + r * outputs, losses + begin + r);
            else if (h->group == 8) /* what LightZero's states have */
                state(h, begin + r, 8, results + r * outputs, losses + begin + r);
            else
                state(h, begin + r, h->group, results + r * outputs, losses + begin + r);
        }
    }
    free(room.memory);
    return 0;
}

/* `of_entropies` may be null. The gradients of the second layer are those of `padded` outputs; all are added to. */
int head_backward(const Head *h, const float *of_losses, const float *of_entropies, float *of_x, float *of_widen,
                  float *of_widen_bias, float *of_narrow, float *of_narrow_bias) {
    const int64_t outputs = padded(h->outputs);
    Room room;
    if (open_room(h, 1, &room))
        return 1;
    for (int64_t begin = 0; begin < h->rows; begin += AT_ONCE) {
        const int64_t rows = h->rows - begin < AT_ONCE ? h->rows - begin : AT_ONCE;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t row = begin + r;
            if (h->kind == CATEGORIES)
                of_distribution(h, row, of_losses[row], of_entropies ? of_entropies[row] : 0.0f,
                                room.results + r * outputs);
            else if (h->group == 8)
                of_state(h, row, 8, of_losses[row], room.results + r * outputs);
            else
                of_state(h, row, h->group, of_losses[row], room.results + r * outputs);
        }
        products_with(room.packed_narrow, 0, room.results, room.wide, rows, outputs, h->hidden);
        gelu_again(h->inside + begin * h->hidden, room.wide, room.wide_too, rows * h->hidden);
        add_products_of_rows(room.results, room.wide_too, of_narrow, of_narrow_bias, rows, outputs, h->hidden);
        copy_inputs(h, begin, rows, room.x);
        add_products_of_rows(room.wide, room.x, of_widen, of_widen_bias, rows, h->hidden, h->width);
        products_with(room.packed_widen, 0, room.wide, of_x + begin * h->width, rows, h->hidden, h->width);
    }
    free(room.memory);
    return 0;
}

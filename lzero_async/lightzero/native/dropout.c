#include "common.h"

#define WORDS 624
#define AHEAD 397

INLINE uint32_t mixed(uint32_t a, uint32_t b) {
    const uint32_t y = (a & 0x80000000u) | (b & 0x7fffffffu);
    return (y >> 1) ^ ((b & 1u) ? 0x9908b0dfu : 0u);
}

/* The next state of the Mersenne twister. Each loop reads what is at least 227 words away from what it writes, or has
   not been written yet, so its turns may be done side by side. */
static void next_state(uint32_t *state) {
#pragma GCC ivdep
    for (int i = 0; i < WORDS - AHEAD; i++)
        state[i] = state[i + AHEAD] ^ mixed(state[i], state[i + 1]);
#pragma GCC ivdep
    for (int i = WORDS - AHEAD; i < WORDS - 1; i++)
        state[i] = state[i + AHEAD - WORDS] ^ mixed(state[i], state[i + 1]);
    state[WORDS - 1] = state[AHEAD - 1] ^ mixed(state[WORDS - 1], state[0]);
}

INLINE uint32_t tempered(uint32_t y) {
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* How torch lays out the state of its generator, as far as it is of interest here. */
typedef struct {
    uint64_t seed;
    int32_t left, seeded;
    uint64_t next, words[WORDS];
} Generator;

/* `keep` has 1 where torch's dropout keeps a number: it draws two words of the twister for each, makes 53 bits of them
   and looks whether they are below `limit`. */
void draw_kept(Generator *generator, uint64_t limit, uint8_t *restrict keep, int64_t count) {
    const uint32_t high = (uint32_t)(limit >> 32), low = (uint32_t)limit;
    uint32_t state[WORDS], words[WORDS + 1];
    int64_t used = WORDS + 1 - generator->left, odd = 0;
    for (int64_t i = 0; i < WORDS; i++)
        state[i] = (uint32_t)generator->words[i];
    while (count > 0) {
        if (used == WORDS) {
            next_state(state);
            used = 0;
        }
        const int64_t wanted = 2 * count - odd, taken = wanted < WORDS - used ? wanted : WORDS - used;
        for (int64_t i = 0; i < taken; i++)
            words[odd + i] = tempered(state[used + i]);
        used += taken;
        const int64_t there = odd + taken, pairs = there / 2;
        for (int64_t i = 0; i < pairs; i++) {
            const uint32_t above = words[2 * i] & 0x1fffffu, below = words[2 * i + 1];
            keep[i] = (above < high) | ((above == high) & (below < low));
        }
        keep += pairs;
        count -= pairs;
        odd = there & 1;
        words[0] = words[there - 1];
    }
    for (int64_t i = 0; i < WORDS; i++)
        generator->words[i] = state[i];
    generator->left = (int32_t)(WORDS + 1 - used);
    generator->next = (uint64_t)used;
}

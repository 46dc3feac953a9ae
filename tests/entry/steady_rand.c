/* LightZero's tree breaks ties with rand(), seeded from the clock on every traverse. Preloaded, this makes a run repeat:
 * a fixed generator, and a srand() that does nothing. */
static unsigned long state = 12345;
int rand(void) { state = state * 6364136223846793005UL + 1442695040888963407UL; return (int)((state >> 33) & 0x7fffffff); }
void srand(unsigned int seed) { (void)seed; }

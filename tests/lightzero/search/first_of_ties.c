/* LightZero's tree breaks ties with rand(). Preloaded, this makes it take the first, whoever searched before. */
int rand(void) { return 0; }

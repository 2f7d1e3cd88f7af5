/* What the generated code calls of <stdlib.h>; guard.c has it. */
#include <stddef.h>

void *malloc(size_t size);
void *realloc(void *old, size_t size);
void free(void *block);
_Noreturn void abort(void);

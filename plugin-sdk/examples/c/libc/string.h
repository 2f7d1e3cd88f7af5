/* What the generated code calls of <string.h>; guard.c has it. */
#include <stddef.h>

void *memcpy(void *to, const void *from, size_t size);
size_t strlen(const char *text);

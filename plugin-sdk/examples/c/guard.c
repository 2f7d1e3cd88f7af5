/* Refuses values longer than VALUE_BYTES_MAX. There is nothing to configure. */

#include "admission_check.h"
#include <stdlib.h>
#include <string.h>

enum { VALUE_BYTES_MAX = 1024 };

bool exports_kuorum_policy_lifecycle_validate_config(
    admission_check_string_t *json, exports_kuorum_policy_lifecycle_list_field_error_t *errors) {
  (void)errors;
  admission_check_string_free(json);
  return true;
}

bool exports_kuorum_policy_lifecycle_configure(
    admission_check_string_t *json, exports_kuorum_policy_lifecycle_failure_t *failure) {
  (void)failure;
  admission_check_string_free(json);
  return true;
}

static bool is_too_long(const exports_kuorum_policy_admission_op_t *op) {
  return op->tag == EXPORTS_KUORUM_POLICY_ADMISSION_OP_PUT && op->val.put.value_bytes > VALUE_BYTES_MAX;
}

bool exports_kuorum_policy_admission_check(
    exports_kuorum_policy_admission_request_t *request, exports_kuorum_policy_admission_verdict_t *verdict,
    exports_kuorum_policy_admission_failure_t *failure) {
  (void)failure;
  verdict->tag = EXPORTS_KUORUM_POLICY_ADMISSION_VERDICT_ALLOW;
  for (size_t i = 0; i < request->ops.len; i++) {
    if (is_too_long(&request->ops.ptr[i])) {
      verdict->tag = EXPORTS_KUORUM_POLICY_ADMISSION_VERDICT_DENY;
      verdict->val.deny.code = EXPORTS_KUORUM_POLICY_ADMISSION_CODE_INVALID_ARGUMENT;
      /* A copy, since the generated code frees the answer once the host has read it. */
      admission_check_string_dup(&verdict->val.deny.message, "a value is longer than 1024 bytes");
    }
  }
  exports_kuorum_policy_admission_request_free(request);
  return true;
}

/* The heap: blocks follow each other, and it is empty again once every block is freed, which each call does. */

extern unsigned char __heap_base;
enum { PAGE_BYTES = 65536, ALIGNMENT = 16 };

static size_t top;
static size_t blocks;

void *malloc(size_t size) {
  if (blocks == 0) top = ((size_t)&__heap_base + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
  /* Before each block is its size, which realloc needs. */
  size_t need = (size + 2 * ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
  size_t memory = __builtin_wasm_memory_size(0) * PAGE_BYTES;
  if (need < size || need > SIZE_MAX - PAGE_BYTES - top) return NULL;
  if (top + need > memory) {
    size_t pages = (top + need - memory + PAGE_BYTES - 1) / PAGE_BYTES;
    if (__builtin_wasm_memory_grow(0, pages) == SIZE_MAX) return NULL;
  }
  *(size_t *)top = size;
  void *block = (void *)(top + ALIGNMENT);
  top += need;
  blocks++;
  return block;
}

void free(void *block) {
  if (block) blocks--;
}

void *realloc(void *old, size_t size) {
  void *block = malloc(size);
  if (old && block) {
    size_t old_size = *(size_t *)((size_t)old - ALIGNMENT);
    memcpy(block, old, old_size < size ? old_size : size);
    free(old);
  }
  return block;
}

_Noreturn void abort(void) { __builtin_trap(); }

void *memcpy(void *to, const void *from, size_t size) {
  for (size_t i = 0; i < size; i++) ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
  return to;
}

size_t strlen(const char *text) {
  size_t length = 0;
  while (text[length]) length++;
  return length;
}

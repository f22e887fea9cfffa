/* What was never written is not zero but NaN, in fp32 and in bf16: preloaded, new memory holds 0xFF in every byte. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static void *fill(void *memory, size_t size) {
    return memory ? memset(memory, 0xFF, size) : memory;
}

void *malloc(size_t size) { return fill(__libc_malloc(size), size); }
void *memalign(size_t alignment, size_t size) { return fill(__libc_memalign(alignment, size), size); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **memory, size_t alignment, size_t size) {
    void *made = memalign(alignment, size);
    if (!made) return ENOMEM;
    *memory = made;
    return 0;
}

/* A disk that is full after FAULT_BYTES bytes: preloaded, it fails writes to regular files under FAULT_FOLDER.

   cc -shared -fPIC -O2 -o full_disk.so full_disk.c -ldl

   Writes through memory maps are not seen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long written;

static int refused(int file, long bytes) {
    const char *limit = getenv("FAULT_BYTES"), *folder = getenv("FAULT_FOLDER");
    struct stat status;
    char link[64], path[4096];
    if (!limit || !folder || fstat(file, &status) || !S_ISREG(status.st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder))) return 0;
    if (atomic_fetch_add(&written, bytes) + bytes <= atol(limit)) return 0;
    errno = ENOSPC;
    return 1;
}

static long sum(const struct iovec *parts, int count) {
    long bytes = 0;
    for (int part = 0; part < count; part++) bytes += (long)parts[part].iov_len;
    return bytes;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *data, size_t size) {
    REAL(write);
    return refused(file, (long)size) ? -1 : real(file, data, size);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
    REAL(pwrite);
    return refused(file, (long)size) ? -1 : real(file, data, size, offset);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    return refused(file, (long)size) ? -1 : real(file, data, size, offset);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev);
    return refused(file, sum(parts, count)) ? -1 : real(file, parts, count);
}
ssize_t copy_file_range(int from, off64_t *start, int file, off64_t *offset, size_t size, unsigned flags) {
    REAL(copy_file_range);
    return refused(file, (long)size) ? -1 : real(from, start, file, offset, size, flags);
}
ssize_t sendfile(int file, int from, off_t *offset, size_t size) {
    REAL(sendfile);
    return refused(file, (long)size) ? -1 : real(file, from, offset, size);
}
ssize_t sendfile64(int file, int from, off64_t *offset, size_t size) {
    REAL(sendfile64);
    return refused(file, (long)size) ? -1 : real(file, from, offset, size);
}

/* A faulty disk for tests: loaded with LD_PRELOAD, it counts the operations of a process that change what is below
   one folder (opening for writing, writing, syncing, closing what was written, renaming, linking, making, deleting,
   truncating) and interferes with those from number `first` to number `last`. tests/faulty_disk.py arms it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum Action {
  COUNT,   /* only count */
  KILL,    /* SIGKILL in place of the operation; of a write, its first half is done */
  FAIL,    /* -1 with `error`; the operation is not done */
  FULL,    /* FAIL with ENOSPC, but only operations that need room */
  LATE,    /* as a network file system that is full: fsync and close fail, and what was written is gone */
  SLOW     /* fsync and rename take `error` milliseconds */
};
enum Kind { OPEN, WRITE, SYNC, CLOSE, RENAME, MAKE, DELETE, TRUNCATE, NUM_KINDS };
enum { HANDLES = 1 << 16, READ = 1, WRITTEN = 2 };

static char folder[PATH_MAX];
static size_t folder_length;
static enum Action action;
static int error;
static long first, last, count;
static unsigned char handles[HANDLES]; /* of files below the folder: READ or WRITTEN */
static off_t synced[HANDLES];          /* bytes that are safe, of files opened for writing */
static char log_path[PATH_MAX];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* Give the absolute path of `path`, which need not exist, without looking at links. */
static void absolute(int at, const char *path, char *out) {
  char base[PATH_MAX] = "", link[64];
  if (path[0] == '/') {
    snprintf(out, PATH_MAX, "%s", path);
    return;
  }
  if (at == AT_FDCWD) {
    if (!getcwd(base, sizeof base)) base[0] = 0;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t length = readlink(link, base, sizeof base - 1);
    base[length < 0 ? 0 : length] = 0;
  }
  snprintf(out, PATH_MAX, "%.2000s/%.2000s", base, path);
}

static int is_below(int at, const char *path) {
  char full[PATH_MAX];
  if (!folder_length || !path) return 0;
  absolute(at, path, full);
  return !strncmp(full, folder, folder_length) && (full[folder_length] == '/' || !full[folder_length]);
}

static int is_ours(int handle) { return handle >= 0 && handle < HANDLES && handles[handle]; }

static void append_to_log(long number, enum Kind kind, const char *path) {
  static const char *names[] = {"open", "write", "sync", "close", "rename", "make", "delete", "truncate"};
  static int (*real_open)(const char *, int, ...);
  static ssize_t (*real_write)(int, const void *, size_t);
  static int (*real_close)(int);
  char line[PATH_MAX + 64];
  if (!log_path[0]) return;
  if (!real_open) {
    real_open = dlsym(RTLD_NEXT, "open");
    real_write = dlsym(RTLD_NEXT, "write");
    real_close = dlsym(RTLD_NEXT, "close");
  }
  int length = snprintf(line, sizeof line, "%ld %s %.2000s\n", number, names[kind], path);
  int log = real_open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log >= 0) {
    if (real_write(log, line, length) < 0) log_path[0] = 0;
    real_close(log);
  }
}

/* Count an operation; return 1 if it is one to interfere with. KILL kills at once, but for writes. */
static int hits(enum Kind kind, const char *path) {
  int saved = errno;
  if (action == FULL && kind != OPEN && kind != WRITE && kind != SYNC && kind != CLOSE && kind != MAKE) return 0;
  if (action == LATE && kind != SYNC && kind != CLOSE) return 0;
  if (action == SLOW && kind != SYNC && kind != RENAME) return 0;
  pthread_mutex_lock(&mutex);
  long number = ++count;
  pthread_mutex_unlock(&mutex);
  int is_hit = action != COUNT && number >= first && number <= last;
  append_to_log(number, kind, path);
  if (is_hit && action == KILL && kind != WRITE) kill(getpid(), SIGKILL);
  if (is_hit && action == SLOW) {
    usleep(error * 1000);
    is_hit = 0;
  }
  errno = saved;
  return is_hit;
}

static int hits_handle(enum Kind kind, int handle) {
  char link[64], path[PATH_MAX] = "";
  if (!is_ours(handle) || !folder_length) return 0;
  if (log_path[0]) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
  }
  return hits(kind, path);
}

static int fail(void) {
  errno = action == FULL || action == LATE ? ENOSPC : error;
  return -1;
}

/* Interfere with what is below a folder from now on; `at` 1 is the next operation. A folder "" stops it. */
void faulty_disk_arm(const char *path, int new_action, int new_error, long at, long until, const char *log) {
  snprintf(folder, sizeof folder, "%s", path);
  folder_length = strlen(folder);
  action = new_action, error = new_error, first = at, last = until, count = 0;
  snprintf(log_path, sizeof log_path, "%s", log);
}

long faulty_disk_count(void) { return count; }

/* A process that is started rather than forked is armed by its environment. */
__attribute__((constructor)) static void arm_by_environment(void) {
  char path[2048], log[2048] = "";
  int new_action, new_error;
  long at, until;
  const char *settings = getenv("FAULTY_DISK");
  if (settings && sscanf(settings, "%d %d %ld %ld %2047[^\n]\n%2047[^\n]", &new_action, &new_error, &at, &until, path, log) >= 5)
    faulty_disk_arm(path, new_action, new_error, at, until, log);
}

static off_t size_of(int handle) {
  struct stat about;
  return fstat(handle, &about) ? 0 : about.st_size;
}

static int opened(int handle, int flags) {
  if (handle < 0 || handle >= HANDLES) return handle;
  handles[handle] = (flags & O_ACCMODE) == O_RDONLY ? READ : WRITTEN;
  synced[handle] = size_of(handle);
  return handle;
}

#define OPEN_AT(name, AT, PARAMETERS, CALL) \
  int name PARAMETERS { \
    REAL(name); \
    mode_t mode = 0; \
    va_list more; \
    va_start(more, flags); \
    if (flags & (O_CREAT | __O_TMPFILE)) mode = va_arg(more, mode_t); \
    va_end(more); \
    if (!is_below(AT, path)) { \
      int handle = real CALL; \
      if (handle >= 0 && handle < HANDLES) handles[handle] = 0; \
      return handle; \
    } \
    int changes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC); \
    if (changes && hits(OPEN, path)) return fail(); \
    return opened(real CALL, flags); \
  }
OPEN_AT(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN_AT(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN_AT(openat, at, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPEN_AT(openat64, at, (int at, const char *path, int flags, ...), (at, path, flags, mode))

/* Of a write that is hit the first half is done before a SIGKILL. */
#define WRITES(name, PARAMETERS, CALL, HALF) \
  ssize_t name PARAMETERS { \
    REAL(name); \
    if (!hits_handle(WRITE, handle)) return real CALL; \
    if (action != KILL) return fail(); \
    if (real HALF >= -1) kill(getpid(), SIGKILL); \
    return -1; \
  }
WRITES(write, (int handle, const void *from, size_t size), (handle, from, size), (handle, from, size / 2))
WRITES(pwrite, (int handle, const void *from, size_t size, off_t offset), (handle, from, size, offset),
       (handle, from, size / 2, offset))
WRITES(pwrite64, (int handle, const void *from, size_t size, off64_t offset), (handle, from, size, offset),
       (handle, from, size / 2, offset))
WRITES(writev, (int handle, const struct iovec *from, int parts), (handle, from, parts), (handle, from, parts / 2))
WRITES(sendfile, (int handle, int from, off_t *offset, size_t size), (handle, from, offset, size),
       (handle, from, offset, size / 2))
WRITES(sendfile64, (int handle, int from, off64_t *offset, size_t size), (handle, from, offset, size),
       (handle, from, offset, size / 2))
ssize_t copy_file_range(int from, off64_t *from_offset, int handle, off64_t *offset, size_t size, unsigned flags) {
  REAL(copy_file_range);
  if (!hits_handle(WRITE, handle)) return real(from, from_offset, handle, offset, size, flags);
  if (action != KILL) return fail();
  if (real(from, from_offset, handle, offset, size / 2, flags) >= -1) kill(getpid(), SIGKILL);
  return -1;
}

/* Drop what a network file system has not stored when it says that it is full. */
static void lose(int handle) {
  static int (*real_ftruncate)(int, off_t);
  if (!real_ftruncate) real_ftruncate = dlsym(RTLD_NEXT, "ftruncate");
  if (action == LATE && handles[handle] == WRITTEN && real_ftruncate(handle, synced[handle])) abort();
}

#define SYNCS(name) \
  int name(int handle) { \
    REAL(name); \
    if (hits_handle(SYNC, handle)) { \
      lose(handle); \
      return fail(); \
    } \
    int result = real(handle); \
    if (!result && is_ours(handle)) synced[handle] = size_of(handle); \
    return result; \
  }
SYNCS(fsync)
SYNCS(fdatasync)

int close(int handle) {
  REAL(close);
  int is_written = is_ours(handle) && handles[handle] == WRITTEN, is_hit = is_written && hits_handle(CLOSE, handle);
  if (is_hit) lose(handle);
  if (handle >= 0 && handle < HANDLES) handles[handle] = 0;
  int result = real(handle);
  return is_hit ? fail() : result;
}

#define ON_PATHS(name, kind, IS_OURS, shown, PARAMETERS, CALL) \
  int name PARAMETERS { \
    REAL(name); \
    if ((IS_OURS) && hits(kind, shown)) return fail(); \
    return real CALL; \
  }
#define EITHER(a, from, b, to) is_below(a, from) || is_below(b, to)
ON_PATHS(rename, RENAME, EITHER(AT_FDCWD, a, AT_FDCWD, b), b, (const char *a, const char *b), (a, b))
ON_PATHS(renameat, RENAME, EITHER(x, a, y, b), b, (int x, const char *a, int y, const char *b), (x, a, y, b))
ON_PATHS(renameat2, RENAME, EITHER(x, a, y, b), b, (int x, const char *a, int y, const char *b, unsigned f),
         (x, a, y, b, f))
ON_PATHS(link, MAKE, is_below(AT_FDCWD, b), b, (const char *a, const char *b), (a, b))
ON_PATHS(linkat, MAKE, is_below(y, b), b, (int x, const char *a, int y, const char *b, int f), (x, a, y, b, f))
ON_PATHS(symlink, MAKE, is_below(AT_FDCWD, b), b, (const char *a, const char *b), (a, b))
ON_PATHS(mkdir, MAKE, is_below(AT_FDCWD, a), a, (const char *a, mode_t m), (a, m))
ON_PATHS(mkdirat, MAKE, is_below(x, a), a, (int x, const char *a, mode_t m), (x, a, m))
ON_PATHS(unlink, DELETE, is_below(AT_FDCWD, a), a, (const char *a), (a))
ON_PATHS(unlinkat, DELETE, is_below(x, a), a, (int x, const char *a, int f), (x, a, f))
ON_PATHS(rmdir, DELETE, is_below(AT_FDCWD, a), a, (const char *a), (a))
ON_PATHS(truncate, TRUNCATE, is_below(AT_FDCWD, a), a, (const char *a, off_t n), (a, n))
ON_PATHS(truncate64, TRUNCATE, is_below(AT_FDCWD, a), a, (const char *a, off64_t n), (a, n))
ON_PATHS(ftruncate, TRUNCATE, is_ours(h) && folder_length, "", (int h, off_t n), (h, n))
ON_PATHS(ftruncate64, TRUNCATE, is_ours(h) && folder_length, "", (int h, off64_t n), (h, n))

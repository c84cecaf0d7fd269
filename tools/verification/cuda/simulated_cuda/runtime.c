/* libcudart.so.13 without a device, for onnxruntime's CUDA provider.

   Memory is the host's and copies copy, so that sessions open, allocate, bind and run. Kernels compute nothing: they
   are counted, as are copies, allocations and waits. A capture records that it happened, and a replay is counted.
   What CUDA refuses while a stream is captured (allocations, synchronous copies, waits) is counted as forbidden.

   Only the functions that the provider links are here. Layouts of structures are those of CUDA 13.0, by offset:
   cudaDeviceProp has 1008 bytes, cudaFuncAttributes 144, cudaPointerAttributes 88. The device is said to have the
   limits of an H100 (compute capability 9.0, 132 multiprocessors, 80 GiB), so that kernels choose as they would there. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct { unsigned x, y, z; } dim3;

/* What is counted; `COUNTS` of child.py has the same order. */
enum { LAUNCHES, WAITS, TO_DEVICE, TO_HOST, ON_DEVICE, ALLOCATIONS, CAPTURES, REPLAYS, FORBIDDEN, PINNED, COUNTERS };
static int64_t counts[COUNTERS];
int64_t simulated_count(int which) { return counts[which]; }

/* Kernels by the function of the host that stands for them, and those that were launched since the last reset. */
enum { KERNELS = 1 << 18, LAUNCHED = 1 << 16 };
static struct { const void *host; const char *name; } kernels[KERNELS];
static int registered;
static const void *launched_kernels[LAUNCHED];
static int launches_kept;

int64_t simulated_launched(const char *part) {
  int64_t found = 0;
  for (int i = 0; i < launches_kept; i++)
    for (int k = 0; k < registered; k++)
      if (kernels[k].host == launched_kernels[i]) {
        found += strstr(kernels[k].name, part) != 0;
        break;
      }
  return found;
}
void simulated_reset(void) { memset(counts, 0, sizeof counts), launches_kept = 0; }

static void *captured; /* the stream that is being captured */
static void forbidden(void) { if (captured) counts[FORBIDDEN]++; }

/* Device memory: blocks of the host's, by address. */
enum { BLOCKS = 100000, PAGE = 4096 };
static struct { char *start; size_t bytes; } blocks[BLOCKS];
static int held;

static int on_device(const void *place) {
  for (int i = 0; i < held; i++)
    if ((const char *)place >= blocks[i].start && (const char *)place < blocks[i].start + blocks[i].bytes) return 1;
  return 0;
}

int cudaMalloc(void **place, size_t bytes) {
  counts[ALLOCATIONS]++;
  forbidden();
  bytes = bytes ? (bytes + PAGE - 1) & ~(size_t)(PAGE - 1) : PAGE;
  *place = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*place == MAP_FAILED || held == BLOCKS) return 2; /* cudaErrorMemoryAllocation */
  blocks[held].start = *place;
  blocks[held++].bytes = bytes;
  return 0;
}

int cudaFree(void *place) {
  for (int i = 0; i < held; i++)
    if (blocks[i].start == place) {
      munmap(place, blocks[i].bytes);
      blocks[i] = blocks[--held];
      break;
    }
  return 0;
}

int cudaMallocFromPoolAsync(void **place, size_t bytes, void *pool, void *stream) { return cudaMalloc(place, bytes); }
int cudaFreeAsync(void *place, void *stream) { return cudaFree(place); }

/* Page-locked memory of the host, by address. */
static struct { char *start; size_t bytes; } locked[BLOCKS];
static int locks;

static int page_locked(const void *place) {
  for (int i = 0; i < locks; i++)
    if ((const char *)place >= locked[i].start && (const char *)place < locked[i].start + locked[i].bytes) return 1;
  return 0;
}

int cudaHostAlloc(void **place, size_t bytes, unsigned flags) {
  forbidden();
  *place = calloc(1, bytes + 64);
  if (!*place || locks == BLOCKS) return 2; /* cudaErrorMemoryAllocation */
  locked[locks].start = *place;
  locked[locks++].bytes = bytes;
  return 0;
}
int cudaMallocHost(void **place, size_t bytes) { return cudaHostAlloc(place, bytes, 0); }
int cudaFreeHost(void *place) {
  for (int i = 0; i < locks; i++)
    if (locked[i].start == place) {
      locked[i] = locked[--locks];
      break;
    }
  free(place);
  return 0;
}
int cudaMemGetInfo(size_t *unused, size_t *all) { *unused = 79ull << 30; *all = 80ull << 30; return 0; }
int cudaMemPoolGetAttribute(void *pool, int which, void *value) { *(uint64_t *)value = 0; return 0; }
int cudaMemPoolSetAttribute(void *pool, int which, void *value) { return 0; }
int cudaMemPoolTrimTo(void *pool, size_t bytes) { return 0; }

int cudaPointerGetAttributes(char *attributes, const void *place) {
  int device = on_device(place);
  memset(attributes, 0, 88);
  *(int *)attributes = device ? 2 : 0; /* cudaMemoryTypeDevice, or not known to CUDA */
  *(const void **)(attributes + (device ? 8 : 16)) = place;
  return 0;
}

/* Copies. */
static void copied(const void *to, const void *from) {
  int target = on_device(to), source = on_device(from);
  counts[target && source ? ON_DEVICE : source ? TO_HOST : TO_DEVICE]++;
  if (target != source && page_locked(target ? from : to)) counts[PINNED]++;
}
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  copied(to, from);
  forbidden();
  memmove(to, from, bytes);
  return 0;
}
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  copied(to, from);
  memmove(to, from, bytes);
  return 0;
}
int cudaMemcpy2DAsync(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t rows, int kind,
                      void *stream) {
  copied(to, from);
  for (size_t row = 0; row < rows; row++) memmove(to + row * to_pitch, from + row * from_pitch, width);
  return 0;
}
int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, int kind) {
  memset(to, 0, bytes);
  return 0;
}
int cudaMemset(void *place, int value, size_t bytes) { memset(place, value, bytes); return 0; }
int cudaMemsetAsync(void *place, int value, size_t bytes, void *stream) { memset(place, value, bytes); return 0; }

/* The device. Offsets within cudaDeviceProp, and numbers of cudaDeviceAttr. */
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int device) { return 0; }
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }
static void put_int(char *place, int value) { *(int *)place = value; }
static void put_size(char *place, size_t value) { *(size_t *)place = value; }
int cudaGetDeviceProperties(char *p, int device) {
  memset(p, 0, 1008);
  strcpy(p, "simulated CUDA, which computes nothing");
  put_size(p + 288, 80ull << 30);  /* totalGlobalMem */
  put_size(p + 296, 49152);        /* sharedMemPerBlock */
  put_int(p + 304, 65536);         /* regsPerBlock */
  put_int(p + 308, 32);            /* warpSize */
  put_size(p + 312, 1ull << 31);   /* memPitch */
  put_int(p + 320, 1024);          /* maxThreadsPerBlock */
  put_int(p + 324, 1024), put_int(p + 328, 1024), put_int(p + 332, 64);          /* maxThreadsDim */
  put_int(p + 336, 2147483647), put_int(p + 340, 65535), put_int(p + 344, 65535); /* maxGridSize */
  put_size(p + 352, 65536);        /* totalConstMem */
  put_int(p + 360, 9);             /* major */
  put_int(p + 384, 132);           /* multiProcessorCount */
  put_int(p + 596, 50 << 20);      /* l2CacheSize */
  put_int(p + 604, 2048);          /* maxThreadsPerMultiProcessor */
  put_size(p + 624, 233472);       /* sharedMemPerMultiprocessor */
  put_int(p + 632, 65536);         /* regsPerMultiprocessor */
  put_int(p + 668, 1);             /* cooperativeLaunch */
  put_size(p + 672, 232448);       /* sharedMemPerBlockOptin */
  put_int(p + 688, 32);            /* maxBlocksPerMultiProcessor */
  return 0;
}
int cudaDeviceGetAttribute(int *value, int which, int device) {
  static const int known[][2] = {
      {1, 1024}, {8, 49152}, {10, 32}, {12, 65536}, {16, 132}, {38, 50 << 20}, {39, 2048}, {75, 9}, {76, 0},
      {81, 233472}, {82, 65536}, {97, 232448}};
  *value = 1;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i][0] == which) *value = known[i][1];
  return 0;
}

/* Kernels. The provider's own stubs hand over a launch configuration, and launch. */
static __thread struct { dim3 grid, block; size_t shared; void *stream; } launch;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  launch.grid = grid, launch.block = block, launch.shared = shared, launch.stream = stream;
  return 0;
}
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = launch.grid, *block = launch.block, *shared = launch.shared, *(void **)stream = launch.stream;
  return 0;
}
int __cudaGetKernel(const void **kernel, const void *function) { *kernel = function; return 0; }
static int launched(const void *kernel) {
  counts[LAUNCHES]++;
  if (launches_kept < LAUNCHED) launched_kernels[launches_kept++] = kernel;
  return 0;
}
int __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **given, size_t shared, void *stream) { return launched(kernel); }
int cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **given, size_t shared, void *stream) { return launched(kernel); }
int cudaLaunchCooperativeKernel(void *kernel, dim3 grid, dim3 block, void **given, size_t shared, void *stream) {
  return launched(kernel);
}
int cudaLaunchKernelExC(void *configuration, void *kernel, void **given) { return launched(kernel); }
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) { function(data); return 0; }
int cudaFuncGetAttributes(char *attributes, const void *function) {
  memset(attributes, 0, 144);
  put_int(attributes + 24, 1024); /* maxThreadsPerBlock */
  put_int(attributes + 28, 32);   /* numRegs */
  return 0;
}
int cudaFuncSetAttribute(const void *function, int which, int value) { return 0; }
int cudaKernelSetAttributeForDevice(void *kernel, int which, int value, int device) { return 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks_, const void *function, int threads, size_t shared,
                                                           unsigned flags) {
  *blocks_ = 2;
  return 0;
}
void **__cudaRegisterFatBinary(void *binary) { return calloc(1, 64); }
void __cudaRegisterFatBinaryEnd(void **binary) {}
void __cudaUnregisterFatBinary(void **binary) {}
void __cudaRegisterFunction(void **binary, const char *host, char *device, const char *name, int limit, void *thread,
                            void *block, void *block_size, void *grid_size, int *warp) {
  if (registered == KERNELS) return;
  kernels[registered].host = host;
  kernels[registered++].name = strdup(name);
}
void __cudaRegisterVar(void **binary, char *host, char *device, const char *name, int external, size_t bytes, int constant,
                       int global) {}

/* Streams, events and graphs are handles. */
static int handle(void **made) { return !(*made = calloc(1, 64)); }
int cudaStreamCreate(void **stream) { return handle(stream); }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return handle(stream); }
int cudaStreamDestroy(void *stream) { return 0; }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { return 0; }
int cudaEventCreate(void **event) { return handle(event); }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return handle(event); }
int cudaEventDestroy(void *event) { return 0; }
int cudaEventElapsedTime(float *milliseconds, void *from, void *to) { *milliseconds = 1; return 0; }
int cudaEventRecord(void *event, void *stream) { return 0; }
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) { return 0; }
static int waited(void) { counts[WAITS]++; forbidden(); return 0; }
int cudaDeviceSynchronize(void) { return waited(); }
int cudaStreamSynchronize(void *stream) { return waited(); }
int cudaEventSynchronize(void *event) { return waited(); }
int cudaMemPoolCreate(void **pool, void *properties) { return handle(pool); }
int cudaMemPoolDestroy(void *pool) { return 0; }
int cudaStreamBeginCapture(void *stream, int mode) { captured = stream; counts[CAPTURES]++; return 0; }
int cudaStreamEndCapture(void *stream, void **graph) { captured = 0; return handle(graph); }
int cudaStreamIsCapturing(void *stream, int *status) { *status = captured != 0; return 0; }
int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) { return handle(executable); }
int cudaGraphLaunch(void *executable, void *stream) { counts[REPLAYS]++; return 0; }
int cudaGraphDestroy(void *graph) { return 0; }
int cudaGraphExecDestroy(void *executable) { return 0; }
int cudaLibraryLoadData(void **library) { return handle(library); }
int cudaLibraryGetKernel(void **kernel, void *library, const char *name) { *kernel = library; return 0; }
int cudaLibraryUnload(void *library) { return 0; }

/* No call fails. */
const char *cudaGetErrorName(int error) { return "an error of simulated CUDA"; }
const char *cudaGetErrorString(int error) { return "an error of simulated CUDA"; }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
static int success(void) { return 0; }
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     int *found) {
  *function = (void *)success;
  if (found) *found = 0;
  return 0;
}

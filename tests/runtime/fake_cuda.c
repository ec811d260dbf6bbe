// A CUDA driver without a GPU: it writes down what it is asked to do. Built by fake_gpu.py as libcuda.so.1.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef struct {
  unsigned grid[3], block[3], shared;
  u64 stream;
  void *attributes;
  unsigned count;
} Config;
typedef struct {
  size_t x, y;
  int kind;
  void *host;
  u64 device;
  void *array;
  size_t pitch;
} Side;
typedef struct {
  Side source, target;
  size_t width, height;
} Rows;
typedef struct {
  int operation;
  u64 address, value;
  unsigned flags;
  u64 alias, rest;
} Operation;

#define FUNCTIONS 4096
static char *text;
static size_t used, room;
static int writing = 1;
static long calls;
static int sizes[FUNCTIONS][128], counts[FUNCTIONS];
static u64 functions = 1, events = 1, streams = 1000;
static int status;

#define NOTE(...)                                                              \
  do {                                                                         \
    ++calls;                                                                   \
    if (writing) {                                                             \
      if (room - used < 65536) {                                               \
        room = room ? 2 * room : 1 << 20;                                      \
        text = realloc(text, room);                                            \
      }                                                                        \
      used += sprintf(text + used, __VA_ARGS__);                               \
    }                                                                          \
  } while (0)

// What the tests ask.
const char *fake_text(void) { return used ? text : ""; }
long fake_calls(void) { return calls; }
void fake_start(int write) { used = 0, calls = 0, writing = write; }
void fake_fail(int with) { status = with; }
void fake_parameters(u64 function, int count, const int *bytes) {
  counts[function] = count;
  memcpy(sizes[function], bytes, count * sizeof(int));
}

// What operators ask.
int cuLaunchKernelEx(const Config *c, u64 function, void **parameters, void **extra) {
  NOTE("launch function=%lu grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%lu attributes=%u parameters=", function,
       c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream, c->count);
  if (writing) {
    for (int i = 0; i < counts[function]; ++i) {
      for (int b = 0; b < sizes[function][i]; ++b)
        used += sprintf(text + used, "%02x", ((unsigned char *)parameters[i])[b]);
      text[used++] = i + 1 < counts[function] ? ',' : '\n';
    }
    text[used] = 0;
  }
  return status;
}
int cuMemcpyDtoDAsync_v2(u64 target, u64 source, size_t bytes, u64 stream) {
  NOTE("copy target=%lu source=%lu bytes=%zu stream=%lu\n", target, source, bytes, stream);
  return status;
}
int cuMemcpy2DAsync_v2(const Rows *r, u64 stream) {
  NOTE("rows target=%lu,%zu source=%lu,%zu width=%zu rows=%zu kinds=%d,%d stream=%lu\n", r->target.device,
       r->target.pitch, r->source.device, r->source.pitch, r->width, r->height, r->source.kind, r->target.kind, stream);
  return 0;
}
int cuStreamBatchMemOp_v2(u64 stream, unsigned count, const Operation *o, unsigned flags) {
  for (unsigned i = 0; i < count; ++i)
    NOTE("%s address=%lu value=%lu stream=%lu\n", o[i].operation == 1 ? "await" : "write", o[i].address, o[i].value,
         stream);
  return status;
}
int cuEventCreate(u64 *event, unsigned flags) {
  *event = events++;
  NOTE("event %lu flags=%u\n", *event, flags);
  return 0;
}
int cuEventDestroy_v2(u64 event) {
  NOTE("forget event=%lu\n", event);
  return 0;
}
int cuEventRecord(u64 event, u64 stream) {
  NOTE("record event=%lu stream=%lu\n", event, stream);
  return status;
}
int cuStreamCreateWithPriority(u64 *stream, unsigned flags, int priority) {
  *stream = streams++;
  NOTE("stream %lu flags=%u priority=%d\n", *stream, flags, priority);
  return 0;
}
int cuStreamWaitEvent(u64 stream, u64 event, unsigned flags) {
  NOTE("wait event=%lu stream=%lu\n", event, stream);
  return flags;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, u64 function, int threads, size_t shared) {
  NOTE("room function=%lu threads=%d shared=%zu\n", function, threads, shared);
  *blocks = 3;
  return 0;
}
int cuGetErrorName(int status, const char **name) {
  *name = status == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
  return 0;
}

// What Triton asks besides.
int cuTensorMapEncodeTiled(void *map, int dtype, unsigned rank, u64 address, const u64 *dims, const u64 *strides,
                           const unsigned *box, const unsigned *steps, int interleave, int swizzle, int l2, int oob) {
  u64 *m = map;
  ++calls;
  memset(m, 0, 128);
  m[0] = address, m[1] = dtype, m[2] = rank, m[3] = interleave, m[4] = swizzle, m[5] = l2, m[6] = oob;
  for (unsigned i = 0; i < rank && i < 3; ++i) {
    m[7 + i] = dims[i], m[10 + i] = box[i] | (u64)steps[i] << 32;
    if (i + 1 < rank)
      m[13 + i] = strides[i];
  }
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 97 ? 232448 : attribute == 16 ? 132 : 0;
  return 0;
}
int cuFuncGetAttribute(int *value, int attribute, u64 function) {
  *value = attribute == 0 ? 1024 : 0;
  return 0;
}
int cuModuleLoadData(u64 *module, const void *data) {
  *module = functions;
  return 0;
}
int cuModuleGetFunction(u64 *function, u64 module, const char *name) {
  *function = functions++ % FUNCTIONS;
  return 0;
}
int cuPointerGetAttribute(u64 *address, int attribute, u64 pointer) {
  ++calls;
  *address = pointer;
  return 0;
}
int cuCtxGetCurrent(u64 *context) {
  *context = 1;
  return 0;
}
int cuGetErrorString(int status, const char **string) {
  *string = "an error";
  return 0;
}
#define NOTHING(name)                                                                                                  \
  int name(void) { return 0; }
NOTHING(cuCtxGetDevice)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxSetLimit)
NOTHING(cuDeviceGet)
NOTHING(cuDeviceGetCount)
NOTHING(cuDevicePrimaryCtxRetain)
NOTHING(cuDriverGetVersion)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuInit)
NOTHING(cuMemAddressFree)
NOTHING(cuMemAddressReserve)
NOTHING(cuModuleUnload)
NOTHING(cuOccupancyMaxActiveClusters)
NOTHING(cuStreamIsCapturing)
NOTHING(cuTensorMapEncodeIm2col)

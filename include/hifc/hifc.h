/* HiFC's store of opaque values on flash, for C and whatever can call it: docs/c-api.md.
 *
 * A store is a directory with a hard limit on its size. Values of 1 byte or more are put under keys
 * of 32 bytes; when there is no room left, the oldest go. It is a cache: what was put may be gone,
 * which is a miss. What is found is verified by checksums: damaged bytes are a miss, never data.
 *
 * Keys are meant to be digests of what determines the value (content addresses): values put under
 * one key are expected to be interchangeable. The newest one is found; after damage on the device
 * an older one may be.
 *
 * Threads. Every function may be called by several threads at once, on one store too, except that
 * hifc_close() must be the last call for its store. Calls block until they are done. Each store has
 * a thread of its own, which talks to the device.
 *
 * Ownership. The library owns the store between hifc_store_open() and hifc_close(). Everything that
 * is passed by pointer belongs to the caller and is used during the call only; what hifc_put()
 * takes is copied. Strings that are returned belong to the library.
 *
 * fork(). A store does not survive it: the child may neither use it nor close it.
 *
 * ABI. Structures with a struct_size may grow at their end within one SOVERSION; the others, the
 * values of constants and the functions do not change. No C++ exception leaves the library.
 */
#ifndef HIFC_HIFC_H
#define HIFC_HIFC_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HIFC_API __attribute__((visibility("default")))
#else
#define HIFC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---- */

/* 0 is success, positive values are no errors, negative ones are. */
typedef int32_t hifc_status;
enum {
  HIFC_OK = 0,
  HIFC_MISS = 1,         /* there is no such value, or not any more */
  HIFC_TOO_SMALL = 2,    /* the value is there; the buffer has no room for it */
  HIFC_INVALID = -1,     /* an argument is unusable: a defect of the caller */
  HIFC_UNSUPPORTED = -2, /* understood, but not something this version or system can do */
  HIFC_NOT_FOUND = -3,   /* a file or directory that had to exist does not */
  HIFC_IO = -4,          /* the operating system refused */
  HIFC_FULL = -5,        /* no room: in the store, on the file system or in memory */
  HIFC_BUSY = -6,        /* another process, or store, owns the directory */
  HIFC_CORRUPT = -7,     /* what is on flash does not hold together */
  HIFC_TIMEOUT = -8,     /* the device did not answer within deadline_ms */
  HIFC_INTERNAL = -9     /* a defect of the library */
};

/* A few words for a status; never NULL. */
HIFC_API const char* hifc_error_text(hifc_status status);

/* One sentence, without a full stop, about the last call of this thread that returned an error;
 * "" if none has. Valid until this thread's next call that returns one. */
HIFC_API const char* hifc_last_error(void);

/* "0.1.0": major.minor.patch. */
HIFC_API const char* hifc_version(void);

/* ---- opening and closing ---- */

typedef struct hifc_store hifc_store;

enum {
  HIFC_BACKEND_AUTO = 0,   /* io_uring, or threads where the system has none */
  HIFC_BACKEND_URING = 1,  /* io_uring or an error */
  HIFC_BACKEND_THREADS = 2 /* blocking reads and writes by a pool of threads */
};

typedef struct hifc_store_options {
  size_t struct_size;      /* set by hifc_store_options_init() */
  const char* directory;   /* required; created with mode 0700 if missing, one owner at a time */
  uint64_t capacity_bytes; /* required: limit on everything in the directory, >= 64 KiB */
  uint64_t segment_bytes;  /* 256 MiB; at most a quarter of the capacity is used */
  uint64_t free_space_floor_bytes; /* 64 MiB: stays free on the file system */
  uint64_t deadline_ms;            /* 10,000: a transfer that takes longer fails; 0: never */
  uint32_t queue_depth;            /* 32: transfers in flight at most */
  int32_t backend;                 /* HIFC_BACKEND_AUTO */
  int32_t direct;                  /* 1: O_DIRECT where possible; 0: through the page cache */
  int32_t temporary;               /* 0; 1: hifc_close() drops all values and files */
} hifc_store_options;

/* Sets the defaults: hifc_store_options_init(&options, sizeof(options)). `struct_size` is how the
 * library knows which version of the structure the caller was compiled with. */
HIFC_API void hifc_store_options_init(hifc_store_options* options, size_t struct_size);

typedef struct hifc_error {
  hifc_status status;
  int32_t system_errno; /* 0 if the system had no part in it */
  char message[504];    /* as hifc_last_error(), cut off where it is longer */
} hifc_error;

/* Opens the directory and finds what earlier stores have left in it. `*store` is NULL after an
 * error, and `error`, which may be NULL, then says what it was. */
HIFC_API hifc_status hifc_store_open(const hifc_store_options* options, hifc_store** store,
                                     hifc_error* error);

/* Flushes, unless the store is temporary, and closes. The store is gone whatever is returned; an
 * error means that not everything that was put is on flash. */
HIFC_API hifc_status hifc_close(hifc_store* store);

/* ---- putting ----
 *
 * Here and below: an array of `count` elements may be NULL where count is 0. */

typedef struct hifc_key {
  uint8_t bytes[32];
} hifc_key;

/* Copies `size` bytes, 1 or more, as the value of a key, and replaces an older one.
 *
 * Values below 4 MiB are gathered in memory, where they are found and read, and written together
 * when 16 MiB have been gathered (less where a quarter of the capacity is less), on hifc_flush()
 * and on hifc_close(). So HIFC_OK says that the value is in the store, not that it is on flash: an
 * error of the device arrives in the next hifc_flush() or hifc_close(), and what it cost is counted
 * in lost_values. A process that is killed loses what it has not flushed. Larger values are on
 * flash when the call returns.
 *
 * On flash a value takes a multiple of 4 KiB. HIFC_FULL when it does not fit into the capacity. */
HIFC_API hifc_status hifc_put(hifc_store* store, const hifc_key* key, const void* data,
                              size_t size);

typedef struct hifc_put_item {
  hifc_key key;
  const void* data;
  size_t size;
  hifc_status status; /* set by hifc_put_many() */
} hifc_put_item;

/* As hifc_put() of each item in turn, also after one has failed. Returns the first error. */
HIFC_API hifc_status hifc_put_many(hifc_store* store, hifc_put_item* items, size_t count);

/* ---- getting ---- */

/* Reads a value. `*size`, where `size` is not NULL, becomes the size of the value, or 0 where it is
 * not found. HIFC_TOO_SMALL when that is more than `capacity`; nothing is read then. `buffer` may
 * be NULL where `capacity` is 0. Bytes beyond the value are left as they are. After HIFC_MISS and
 * errors the bytes of the buffer are unspecified, but never damaged ones.
 *
 * A buffer aligned to 4 KiB saves a copy. Then a call that fails with HIFC_TIMEOUT returns only
 * when the device has let go of the buffer. */
HIFC_API hifc_status hifc_get(hifc_store* store, const hifc_key* key, void* buffer, size_t capacity,
                              size_t* size);

typedef struct hifc_get_request {
  hifc_key key;
  void* buffer;
  size_t capacity;
  size_t size;        /* set by hifc_get_many(), as status */
  hifc_status status; /* as hifc_get() */
} hifc_get_request;

/* As hifc_get() of each request, all of them in flight together, up to queue_depth transfers.
 * Returns the first error among the requests'; misses and small buffers are none. */
HIFC_API hifc_status hifc_get_many(hifc_store* store, hifc_get_request* requests, size_t count);

typedef struct hifc_range_request {
  hifc_key key;
  uint64_t offset; /* of the range in the value; need not be aligned */
  void* buffer;
  size_t size;         /* of the range */
  uint64_t value_size; /* set by hifc_get_ranges(), as status; 0 where the value is not found */
  hifc_status status;  /* HIFC_INVALID where the value has no such range */
} hifc_range_request;

/* As hifc_get_many() for parts of values. Only the checksummed chunks that a range touches are read
 * and verified: 4 KiB each, or 64 KiB in values of 4 MiB and more. */
HIFC_API hifc_status hifc_get_ranges(hifc_store* store, hifc_range_request* requests, size_t count);

/* HIFC_OK or HIFC_MISS, as far as memory knows: reading may still find the value damaged. */
HIFC_API hifc_status hifc_contains(hifc_store* store, const hifc_key* key);

/* The size of a value. Its bytes are not read. */
HIFC_API hifc_status hifc_size(hifc_store* store, const hifc_key* key, uint64_t* size);

/* ---- the rest ---- */

/* Forgets a value; durably after hifc_flush(). HIFC_MISS if there was none. */
HIFC_API hifc_status hifc_remove(hifc_store* store, const hifc_key* key);

/* Returns when everything that was put and removed before survives a power failure. An error also
 * reports values that were put earlier and could not be written; they are misses now. */
HIFC_API hifc_status hifc_flush(hifc_store* store);

/* Counts since the store was opened, unless said otherwise. */
typedef struct hifc_store_stat {
  size_t struct_size;          /* to be set to sizeof(hifc_store_stat) by the caller */
  uint64_t values;             /* now, on flash */
  uint64_t buffered_values;    /* now, in memory */
  uint64_t buffered_bytes;     /* now */
  uint64_t capacity_bytes;     /* as in the options */
  uint64_t bytes_on_disk;      /* now: everything of this store in the directory */
  uint64_t peak_bytes_on_disk; /* the most there ever were; at most capacity_bytes */
  uint64_t hits;               /* reads that found their value */
  uint64_t misses;             /* reads that did not, damaged ones among them */
  uint64_t corrupt_chunks;     /* chunks of values whose checksum was wrong */
  uint64_t quarantined_values; /* forgotten because they were damaged */
  uint64_t retired_values;     /* forgotten to make room */
  uint64_t removed_values;     /* by hifc_remove(), of those on flash */
  uint64_t lost_values;        /* put, but the device could not write them */
  uint64_t recovered_values;   /* found when the store was opened */
  uint64_t reads;              /* requests to the device, and their bytes */
  uint64_t read_bytes;
  uint64_t writes;
  uint64_t written_bytes;
  uint64_t syncs;
  uint64_t timeouts; /* transfers over their deadline */
  int32_t backend;   /* HIFC_BACKEND_URING or HIFC_BACKEND_THREADS */
  int32_t reserved;
} hifc_store_stat;

/* Fills in as much of the structure as its struct_size has. */
HIFC_API hifc_status hifc_stat(hifc_store* store, hifc_store_stat* stat);

#ifdef __cplusplus
}
#endif

#endif

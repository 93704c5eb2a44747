/* Keeps values in a directory across runs: store DIRECTORY
 *
 * Compile with an installed libhifc:
 *   cc -std=c11 store.c $(pkg-config --cflags --libs hifc) -o store
 *
 * Puts values, makes them durable, reads them, whole and in parts, and opens the directory again to
 * find them there. Ends with status 1 and one line where something is not as it should be. */
#include <hifc/hifc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kValues = 1000, kValueBytes = 10000 };

/* For calls that must succeed. */
static void check(hifc_status status, const char* what) {
  if (status == HIFC_OK) return;
  fprintf(stderr, "store: %s: %s (%s)\n", what, hifc_error_text(status), hifc_last_error());
  exit(1);
}

static void require(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "store: %s\n", what);
  exit(1);
}

/* Real keys are digests, for example SHA-256, of whatever determines the value. */
static hifc_key key_of(unsigned number) {
  hifc_key key;
  memset(&key, 0, sizeof(key));
  memcpy(key.bytes, &number, sizeof(number));
  return key;
}

static void fill(unsigned number, unsigned char* value) {
  for (size_t i = 0; i < kValueBytes; ++i) value[i] = (unsigned char)(number * 31 + i * 7);
}

static hifc_store* open_store(const char* directory) {
  hifc_store_options options;
  hifc_store_options_init(&options, sizeof(options));
  options.directory = directory;
  options.capacity_bytes = 256u << 20;

  hifc_store* store = NULL;
  hifc_error error;
  if (hifc_store_open(&options, &store, &error) != HIFC_OK) {
    fprintf(stderr, "store: cannot open %s: %s\n", directory, error.message);
    exit(1);
  }
  return store;
}

static void put_values(hifc_store* store) {
  unsigned char value[kValueBytes];
  for (unsigned i = 0; i < kValues; ++i) {
    const hifc_key key = key_of(i);
    fill(i, value);
    check(hifc_put(store, &key, value, sizeof(value)), "putting a value");
  }
  check(hifc_flush(store), "making values durable");
}

static void get_values(hifc_store* store) {
  unsigned char value[kValueBytes], expected[kValueBytes];
  for (unsigned i = 0; i < kValues; ++i) {
    const hifc_key key = key_of(i);
    size_t size = 0;
    const hifc_status status = hifc_get(store, &key, value, sizeof(value), &size);
    /* In a cache that is full a miss is normal: the value is computed and put again. Here there is
     * room for all of them. */
    require(status != HIFC_MISS, "a value is missing");
    check(status, "getting a value");
    fill(i, expected);
    require(size == kValueBytes && memcmp(value, expected, size) == 0, "a value is wrong");
  }
}

/* Parts of many values with one call, which keeps the device busy. */
static void get_parts(hifc_store* store) {
  enum { kRequests = 64, kPartBytes = 100 };
  static unsigned char parts[kRequests][kPartBytes];
  hifc_range_request requests[kRequests];
  for (unsigned i = 0; i < kRequests; ++i) {
    requests[i].key = key_of(i);
    requests[i].offset = 4000 + i;
    requests[i].buffer = parts[i];
    requests[i].size = kPartBytes;
  }
  check(hifc_get_ranges(store, requests, kRequests), "getting parts of values");
  unsigned char expected[kValueBytes];
  for (unsigned i = 0; i < kRequests; ++i) {
    require(requests[i].status == HIFC_OK, "a part is missing");
    fill(i, expected);
    require(memcmp(parts[i], expected + 4000 + i, kPartBytes) == 0, "a part is wrong");
  }
}

static void show_misses(hifc_store* store) {
  const hifc_key absent = key_of(kValues), first = key_of(0);
  require(hifc_contains(store, &absent) == HIFC_MISS, "a value that was never put is there");
  size_t size = 0;
  unsigned char byte = 0;
  require(hifc_get(store, &first, &byte, 1, &size) == HIFC_TOO_SMALL && size == kValueBytes,
          "a small buffer does not tell the size");
  check(hifc_remove(store, &first), "removing a value");
  require(hifc_get(store, &first, &byte, 1, &size) == HIFC_MISS, "a removed value is there");
}

int main(int count, char** arguments) {
  if (count != 2) {
    fprintf(stderr, "usage: store DIRECTORY\n");
    return 2;
  }
  hifc_store* store = open_store(arguments[1]);
  put_values(store);
  get_values(store);
  check(hifc_close(store), "closing");

  store = open_store(arguments[1]);
  get_values(store);
  get_parts(store);
  show_misses(store);

  hifc_store_stat stat;
  stat.struct_size = sizeof(stat);
  check(hifc_stat(store, &stat), "asking for counters");
  printf("libhifc %s, %s: %llu values, %llu of %llu bytes, %llu hits, %llu misses\n",
         hifc_version(), stat.backend == HIFC_BACKEND_URING ? "io_uring" : "threads",
         (unsigned long long)stat.values, (unsigned long long)stat.bytes_on_disk,
         (unsigned long long)stat.capacity_bytes, (unsigned long long)stat.hits,
         (unsigned long long)stat.misses);
  check(hifc_close(store), "closing");
  return 0;
}

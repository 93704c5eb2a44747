// The C interface: arguments are checked, results become statuses, exceptions stop here. What
// everything does is in blocking_store.h.
#include "hifc/hifc.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/blocking_store.h"

struct hifc_store {
  std::unique_ptr<hifc::capi::BlockingStore> blocking;
};

namespace {

using hifc::Code;
using hifc::Error;
using hifc::failure;
using hifc::Result;
using hifc::capi::BlockingStore;
using hifc::capi::BlockingStoreStatistics;
using hifc::capi::ReadRequest;

constexpr size_t kOptionsSizeMin = sizeof(hifc_store_options);  // of version 0.1.0
constexpr size_t kStatSizeMin = sizeof(hifc_store_stat);        // of version 0.1.0

// Of fixed size, so that running out of memory can be reported.
thread_local hifc_error last_error = {};

// ---- statuses ----

hifc_status status_of(Code code) {
  switch (code) {
    case Code::kInvalid: return HIFC_INVALID;
    case Code::kUnsupported: return HIFC_UNSUPPORTED;
    case Code::kNotFound: return HIFC_NOT_FOUND;
    case Code::kIo: return HIFC_IO;
    case Code::kFull: return HIFC_FULL;
    case Code::kBusy: return HIFC_BUSY;
    case Code::kCorrupt: return HIFC_CORRUPT;
    case Code::kTimeout: return HIFC_TIMEOUT;
    case Code::kCancelled:
    case Code::kInternal: return HIFC_INTERNAL;
  }
  return HIFC_INTERNAL;
}

hifc_status report(hifc_status status, std::string_view message, int system_errno = 0) {
  last_error = {};
  last_error.status = status;
  last_error.system_errno = system_errno;
  const size_t length = std::min(message.size(), sizeof(last_error.message) - 1);
  std::copy_n(message.data(), length, last_error.message);
  return status;
}

hifc_status report(const Error& error) {
  return report(status_of(error.code), error.message(), error.system_errno);
}

hifc_status report(const Result<void>& result) {
  return result ? HIFC_OK : report(result.error());
}

hifc_status null_argument(std::string_view name) {
  return report(HIFC_INVALID, fmt::format("{} is NULL", name));
}

// Runs the body of a function of the interface: no exception leaves it.
template <typename Body>
hifc_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return report(HIFC_FULL, "out of memory");
  } catch (const std::exception& exception) {
    return report(HIFC_INTERNAL, exception.what());
  } catch (...) {
    return report(HIFC_INTERNAL, "an unknown exception");
  }
}

struct Argument {
  const char* name;
  const void* pointer;
  size_t count = 1;  // of an array; an empty one may be NULL
};

// As guarded(), when none of the arguments is NULL.
template <typename Body>
hifc_status guarded(std::initializer_list<Argument> arguments, Body body) noexcept {
  return guarded([&] {
    for (const Argument& argument : arguments)
      if (argument.pointer == nullptr && argument.count > 0) return null_argument(argument.name);
    return body();
  });
}

// ---- options ----

hifc_store_options default_options() {
  const hifc::flash::StoreOptions store;
  const hifc::io::RingOptions ring;
  hifc_store_options options = {};
  options.struct_size = sizeof(options);
  options.segment_bytes = store.segment_bytes;
  options.free_space_floor_bytes = store.free_space_floor_bytes;
  options.deadline_ms = store.deadline_ns / 1'000'000;
  options.queue_depth = ring.depth;
  options.backend = HIFC_BACKEND_AUTO;
  options.direct = 1;
  return options;
}

// The caller's structure may be older, and shorter, than ours, or newer, with settings that we do
// not know and must not ignore.
Result<hifc_store_options> read_options(const hifc_store_options& given) {
  const size_t size = given.struct_size;
  if (size < kOptionsSizeMin)
    return failure(Code::kInvalid,
                   fmt::format("options.struct_size is {}; hifc_store_options_init() sets it to "
                               "{} or more",
                               size, kOptionsSizeMin));
  const auto* bytes = reinterpret_cast<const unsigned char*>(&given);
  for (size_t i = sizeof(given); i < size; ++i)
    if (bytes[i] != 0)
      return failure(Code::kUnsupported,
                     "options have a setting that this version of the library does not know");
  hifc_store_options options = default_options();
  std::memcpy(&options, &given, std::min(size, sizeof(options)));
  return options;
}

Result<hifc::io::RingOptions::Backend> backend_of(int32_t backend) {
  using Backend = hifc::io::RingOptions::Backend;
  switch (backend) {
    case HIFC_BACKEND_AUTO: return Backend::kAutomatic;
    case HIFC_BACKEND_URING: return Backend::kUring;
    case HIFC_BACKEND_THREADS: return Backend::kThreads;
    default: return failure(Code::kInvalid, fmt::format("options.backend is {}", backend));
  }
}

Result<std::unique_ptr<BlockingStore>> open_store(const hifc_store_options& given) {
  HIFC_ASSIGN(const hifc_store_options options, read_options(given));
  if (options.directory == nullptr) return failure(Code::kInvalid, "options.directory is NULL");
  if (options.deadline_ms > UINT64_MAX / 1'000'000)
    return failure(Code::kInvalid, fmt::format("options.deadline_ms is {}", options.deadline_ms));
  HIFC_ASSIGN(const auto backend, backend_of(options.backend));
  HIFC_ASSIGN(auto ring,
              hifc::io::Ring::create({.backend = backend, .depth = options.queue_depth}));
  return BlockingStore::open({.directory = options.directory,
                              .capacity_bytes = options.capacity_bytes,
                              .segment_bytes = options.segment_bytes,
                              .direct = options.direct != 0,
                              .temporary = options.temporary != 0,
                              .free_space_floor_bytes = options.free_space_floor_bytes,
                              .deadline_ns = options.deadline_ms * 1'000'000},
                             std::move(ring));
}

// ---- values ----

BlockingStore::Key key_of(const hifc_key& key) {
  BlockingStore::Key result;
  static_assert(sizeof(result) == sizeof(key));
  std::memcpy(result.data(), key.bytes, sizeof(key.bytes));
  return result;
}

hifc_status put(hifc_store& store, const hifc_key& key, const void* data, size_t size) {
  if (data == nullptr) return null_argument("data");
  return report(store.blocking->put(key_of(key), {static_cast<const std::byte*>(data), size}));
}

ReadRequest whole(const hifc_key& key, void* buffer, size_t capacity) {
  return {.key = key_of(key),
          .extent = ReadRequest::Extent::kWhole,
          .target = {static_cast<std::byte*>(buffer), capacity}};
}

ReadRequest range(const hifc_range_request& request) {
  return {.key = key_of(request.key),
          .extent = ReadRequest::Extent::kRange,
          .offset_bytes = request.offset,
          .target = {static_cast<std::byte*>(request.buffer), request.size}};
}

hifc_status status_of(const ReadRequest& request) {
  if (!request.result) return report(request.result.error());
  if (!request.result->found) return HIFC_MISS;
  const uint64_t value_bytes = request.result->value_bytes;
  if (request.bytes_to_read(value_bytes)) return HIFC_OK;
  if (request.extent == ReadRequest::Extent::kWhole) return HIFC_TOO_SMALL;
  return report(HIFC_INVALID,
                fmt::format("a range of {} bytes at {} of a value of {}", request.target.size(),
                            request.offset_bytes, value_bytes));
}

uint64_t value_bytes_of(const ReadRequest& request) {
  return request.result ? request.result->value_bytes : 0;
}

// Keeps the first error, whose message is then made the thread's last one again.
class FirstError {
 public:
  void add(hifc_status status) {
    if (status < 0 && first_.status == HIFC_OK) first_ = last_error;
  }
  hifc_status result() const {
    if (first_.status != HIFC_OK) last_error = first_;
    return first_.status;
  }

 private:
  hifc_error first_ = {};
};

// Reads all `requests` together. `to_read` makes a ReadRequest of one, `finish` hands it the size
// of its value.
template <typename Request, typename ToRead, typename Finish>
hifc_status read_many(hifc_store& store, std::span<Request> requests, ToRead to_read,
                      Finish finish) {
  for (const Request& request : requests)
    if (request.buffer == nullptr && to_read(request).target.size() > 0)
      return null_argument("requests[].buffer");
  std::vector<ReadRequest> reads;
  reads.reserve(requests.size());
  for (const Request& request : requests) reads.push_back(to_read(request));
  store.blocking->read(reads);
  FirstError first;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].status = status_of(reads[i]);
    first.add(requests[i].status);
    finish(requests[i], value_bytes_of(reads[i]));
  }
  return first.result();
}

hifc_store_stat stat_of(const BlockingStoreStatistics& now, bool uring) {
  hifc_store_stat stat = {};
  stat.values = now.flash.values;
  stat.buffered_values = now.buffered_values;
  stat.buffered_bytes = now.buffered_bytes;
  stat.capacity_bytes = now.capacity_bytes;
  stat.bytes_on_disk = now.flash.bytes_on_disk;
  stat.peak_bytes_on_disk = now.flash.peak_bytes_on_disk;
  stat.hits = now.hits;
  stat.misses = now.misses;
  stat.corrupt_chunks = now.flash.corrupt_chunks;
  stat.quarantined_values = now.flash.quarantined_values;
  stat.retired_values = now.flash.retired_values;
  stat.removed_values = now.flash.removed_values;
  stat.lost_values = now.lost_values + now.flash.unsynced_values;
  stat.recovered_values = now.flash.recovered_values;
  stat.reads = now.flash.reads;
  stat.read_bytes = now.flash.read_bytes;
  stat.writes = now.flash.writes;
  stat.written_bytes = now.flash.written_bytes;
  stat.syncs = now.flash.syncs;
  stat.timeouts = now.flash.timeouts;
  stat.backend = uring ? HIFC_BACKEND_URING : HIFC_BACKEND_THREADS;
  return stat;
}

}  // namespace

const char* hifc_error_text(hifc_status status) {
  switch (status) {
    case HIFC_OK: return "success";
    case HIFC_MISS: return "no such value";
    case HIFC_TOO_SMALL: return "the buffer is too small for the value";
    case HIFC_INVALID: return "an argument is unusable";
    case HIFC_UNSUPPORTED: return "not supported";
    case HIFC_NOT_FOUND: return "no such file or directory";
    case HIFC_IO: return "input or output failed";
    case HIFC_FULL: return "no room";
    case HIFC_BUSY: return "in use by another owner";
    case HIFC_CORRUPT: return "damaged data";
    case HIFC_TIMEOUT: return "the device did not answer in time";
    case HIFC_INTERNAL: return "a defect of the library";
    default: return "unknown status";
  }
}

const char* hifc_last_error(void) {
  return last_error.message;
}

const char* hifc_version(void) {
  return HIFC_VERSION;
}

void hifc_store_options_init(hifc_store_options* options, size_t struct_size) {
  if (options == nullptr) return;
  std::memset(options, 0, struct_size);
  hifc_store_options defaults = default_options();
  defaults.struct_size = struct_size;
  std::memcpy(options, &defaults, std::min(struct_size, sizeof(defaults)));
}

hifc_status hifc_store_open(const hifc_store_options* options, hifc_store** store,
                            hifc_error* error) {
  if (store != nullptr) *store = nullptr;
  const hifc_status status = guarded({{"options", options}, {"store", store}}, [&] {
    auto opened = open_store(*options);
    if (!opened) return report(opened.error());
    *store = new hifc_store{std::move(*opened)};
    return hifc_status{HIFC_OK};
  });
  if (error != nullptr) *error = status == HIFC_OK ? hifc_error{} : last_error;
  return status;
}

hifc_status hifc_close(hifc_store* store) {
  return guarded({{"store", store}}, [&] {
    const std::unique_ptr<hifc_store> owned(store);
    return report(owned->blocking->close());
  });
}

hifc_status hifc_put(hifc_store* store, const hifc_key* key, const void* data, size_t size) {
  return guarded({{"store", store}, {"key", key}}, [&] { return put(*store, *key, data, size); });
}

hifc_status hifc_put_many(hifc_store* store, hifc_put_item* items, size_t count) {
  return guarded({{"store", store}, {"items", items, count}}, [&] {
    FirstError first;
    for (hifc_put_item& item : std::span(items, count)) {
      item.status = put(*store, item.key, item.data, item.size);
      first.add(item.status);
    }
    return first.result();
  });
}

hifc_status hifc_get(hifc_store* store, const hifc_key* key, void* buffer, size_t capacity,
                     size_t* size) {
  if (size != nullptr) *size = 0;
  return guarded({{"store", store}, {"key", key}}, [&] {
    if (buffer == nullptr && capacity > 0) return null_argument("buffer");
    ReadRequest request = whole(*key, buffer, capacity);
    store->blocking->read({&request, 1});
    if (size != nullptr) *size = value_bytes_of(request);
    return status_of(request);
  });
}

hifc_status hifc_get_many(hifc_store* store, hifc_get_request* requests, size_t count) {
  return guarded({{"store", store}, {"requests", requests, count}}, [&] {
    return read_many(
        *store, std::span(requests, count),
        [](const hifc_get_request& request) {
          return whole(request.key, request.buffer, request.capacity);
        },
        [](hifc_get_request& request, uint64_t bytes) { request.size = bytes; });
  });
}

hifc_status hifc_get_ranges(hifc_store* store, hifc_range_request* requests, size_t count) {
  return guarded({{"store", store}, {"requests", requests, count}}, [&] {
    return read_many(
        *store, std::span(requests, count), range,
        [](hifc_range_request& request, uint64_t bytes) { request.value_size = bytes; });
  });
}

hifc_status hifc_contains(hifc_store* store, const hifc_key* key) {
  return guarded({{"store", store}, {"key", key}}, [&] {
    return hifc_status{store->blocking->contains(key_of(*key)) ? HIFC_OK : HIFC_MISS};
  });
}

hifc_status hifc_size(hifc_store* store, const hifc_key* key, uint64_t* size) {
  if (size != nullptr) *size = 0;
  return guarded({{"store", store}, {"key", key}, {"size", size}}, [&] {
    ReadRequest request = whole(*key, nullptr, 0);
    store->blocking->read({&request, 1});
    *size = value_bytes_of(request);
    const hifc_status status = status_of(request);
    return status == HIFC_TOO_SMALL ? hifc_status{HIFC_OK} : status;
  });
}

hifc_status hifc_remove(hifc_store* store, const hifc_key* key) {
  return guarded({{"store", store}, {"key", key}}, [&] {
    return hifc_status{store->blocking->remove(key_of(*key)) ? HIFC_OK : HIFC_MISS};
  });
}

hifc_status hifc_flush(hifc_store* store) {
  return guarded({{"store", store}}, [&] { return report(store->blocking->flush()); });
}

hifc_status hifc_stat(hifc_store* store, hifc_store_stat* stat) {
  return guarded({{"store", store}, {"stat", stat}}, [&] {
    const size_t size = stat->struct_size;
    if (size < kStatSizeMin)
      return report(HIFC_INVALID, fmt::format("stat.struct_size is {}; sizeof(hifc_store_stat) is "
                                              "{} or more",
                                              size, kStatSizeMin));
    hifc_store_stat now =
        stat_of(store->blocking->statistics(), store->blocking->ring_name() == "io_uring");
    now.struct_size = size;
    std::memset(stat, 0, size);
    std::memcpy(stat, &now, std::min(size, sizeof(now)));
    return hifc_status{HIFC_OK};
  });
}

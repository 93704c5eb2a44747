#include "engine/records.h"

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "io/memory.h"

namespace hifc::engine {
namespace {

static_assert(kRecordBytes % io::kAlignment == 0);

constexpr flash::BatchShape kShape{.lanes = 1, .chunk_bytes = kRecordBytes};

// What callbacks write to: it outlives a call that gave up waiting.
struct Transfer {
  io::AlignedMemory memory;
  flash::Handle handle;
  std::optional<Result<void>> outcome;
};

std::shared_ptr<Transfer> make_transfer() {
  auto memory = io::AlignedMemory::allocate(kRecordBytes);
  if (!memory) return nullptr;
  auto transfer = std::make_shared<Transfer>();
  transfer->memory = std::move(*memory);
  return transfer;
}

// Waits for the transfer that `start` began; tries again while the store is busy.
template <typename Start>
Result<void> run(tier::Tiers& tiers, const std::shared_ptr<Transfer>& transfer, Start start) {
  transfer->outcome.reset();
  Result<void> accepted = start();
  while (!accepted && accepted.error().code == Code::kBusy && tiers.wait() > 0) accepted = start();
  HIFC_TRY(accepted);
  while (!transfer->outcome && tiers.wait() > 0) continue;
  return transfer->outcome.value_or(failure(Code::kTimeout, "the flash device does not answer"));
}

}  // namespace

std::optional<std::vector<std::byte>> read_record(tier::Tiers& tiers, const kv::GroupKey& key) {
  if (!tiers.has_cold() || !tiers.store().contains(key)) return std::nullopt;
  flash::Store& store = tiers.store();
  const auto transfer = make_transfer();
  if (!transfer) return std::nullopt;
  const auto pinned = run(tiers, transfer, [&] {
    return store.pin(key, [transfer](flash::Handle handle) {
      transfer->handle = std::move(handle);
      transfer->outcome.emplace();
    });
  });
  // Not in `transfer`, which may outlive the store.
  const flash::Handle handle = std::move(transfer->handle);
  if (!pinned || !handle || handle.lanes() != 1 || handle.lane_bytes(0) != kRecordBytes)
    return std::nullopt;
  const auto read = run(tiers, transfer, [&] {
    const flash::LaneRead lane{.handle = &handle, .memory = transfer->memory.data()};
    return store.read(
        0, {&lane, 1}, [transfer](Result<void> outcome) { transfer->outcome = std::move(outcome); },
        [transfer] {});
  });
  const auto bytes = std::span<const std::byte>(transfer->memory.span()).first(kRecordBytes);
  if (!read) return std::nullopt;
  if (!store.verify(handle, 0, bytes)) {
    store.quarantine(handle);
    return std::nullopt;
  }
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Result<void> write_record(tier::Tiers& tiers, const kv::GroupKey& key,
                          std::span<const std::byte> record) {
  HIFC_CHECK(record.size() == kRecordBytes);
  const auto transfer = make_transfer();
  if (!transfer) return failure(Code::kInternal, "no memory for a record");
  std::ranges::copy(record, transfer->memory.data());
  const auto written = run(tiers, transfer, [&] {
    flash::PutValue value{.key = key, .lanes = {transfer->memory.span().first(kRecordBytes)}};
    return tiers.store().put(kShape, {std::move(value)},
                             [transfer](const Result<std::vector<flash::Handle>>& handles) {
                               transfer->outcome.emplace();
                               if (!handles) *transfer->outcome = std::unexpected(handles.error());
                             });
  });
  // A device that is late may still read the memory at any time.
  if (!written && written.error().code == Code::kTimeout)
    static_cast<void>(new std::shared_ptr<Transfer>(transfer));
  return written;
}

}  // namespace hifc::engine

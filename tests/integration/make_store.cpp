// make_store DIR VALUES: a flash directory for tests of programs that look at one. The values have
// two lanes of 16 KiB and lie four in a batch, in segments of 1 MiB; the keys begin with the
// value's number.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "flash/store.h"
#include "io/memory.h"

namespace hifc {
namespace {

constexpr uint32_t kLanes = 2;
constexpr uint64_t kLaneBytes = 16u << 10;
constexpr uint64_t kBatchValues = 4;

Result<void> put_batch(flash::Store& store, uint64_t first, uint64_t count) {
  HIFC_ASSIGN(const io::AlignedMemory memory,
              io::AlignedMemory::allocate(count * kLanes * kLaneBytes));
  std::byte* position = memory.data();
  std::vector<flash::PutValue> values(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t number = first + i;
    std::memcpy(values[i].key.data(), &number, sizeof number);
    for (uint32_t lane = 0; lane < kLanes; ++lane, position += kLaneBytes) {
      std::fill_n(position, kLaneBytes, static_cast<std::byte>(number + lane));
      values[i].lanes.push_back({position, kLaneBytes});
    }
  }
  std::optional<Result<void>> outcome;
  HIFC_TRY(store.put({.lanes = kLanes, .chunk_bytes = io::kAlignment}, std::move(values),
                     [&](const Result<std::vector<flash::Handle>>& handles) {
                       outcome = handles ? Result<void>() : std::unexpected(handles.error());
                     }));
  while (!outcome) store.wait();
  return *outcome;
}

Result<void> make(const char* directory, uint64_t count) {
  HIFC_ASSIGN(const std::unique_ptr<io::Ring> ring, io::Ring::create({}));
  HIFC_ASSIGN(
      const std::unique_ptr<flash::Store> store,
      flash::Store::open(
          {.directory = directory, .capacity_bytes = 64u << 20, .segment_bytes = 1u << 20}, *ring));
  for (uint64_t first = 0; first < count; first += kBatchValues)
    HIFC_TRY(put_batch(*store, first, std::min(kBatchValues, count - first)));
  return {};
}

}  // namespace
}  // namespace hifc

int main(int argc, char** argv) {
  uint64_t count = 0;
  const std::string_view text = argc == 3 ? argv[2] : "";
  if (std::from_chars(text.data(), text.data() + text.size(), count).ec != std::errc{}) {
    fmt::print(stderr, "make_store DIR VALUES\n");
    return 2;
  }
  const auto made = hifc::make(argv[1], count);
  if (!made) fmt::print(stderr, "make_store: {}\n", made.error().message());
  return made ? 0 : 1;
}

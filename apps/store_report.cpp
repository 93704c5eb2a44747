#include "apps/store_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/table.h"
#include "base/text.h"
#include "base/units.h"

namespace hifc::apps {
namespace {

using flash::DamagedRecord;
using flash::DamagedValue;
using flash::Execution;
using flash::Fate;
using flash::InspectedSegment;
using flash::Inspection;
using flash::RemovedSegment;
using State = InspectedSegment::State;

// Of all segments together.
struct Totals {
  uint64_t values = 0, value_bytes = 0, replaced = 0, removed = 0, removals = 0;
  uint64_t covered_bytes = 0, scanned_bytes = 0;
  uint64_t overwrites_min = 0, overwrites_max = 0;
  double overwrites_mean = 0;
  const InspectedSegment* oldest = nullptr;
  const InspectedSegment* newest = nullptr;
};

uint64_t covered_bytes(const InspectedSegment& segment) {
  return segment.covered_bytes - std::min(segment.covered_bytes, flash::kSegmentHeaderBytes);
}

Totals totals_of(const Inspection& found) {
  Totals totals;
  uint64_t counted = 0;
  for (const InspectedSegment& segment : found.segments) {
    totals.values += segment.values(Fate::kCurrent);
    totals.value_bytes += segment.value_bytes();
    totals.replaced += segment.values(Fate::kReplaced);
    totals.removed += segment.values(Fate::kRemoved);
    totals.removals += segment.removals();
    totals.covered_bytes += covered_bytes(segment);
    totals.scanned_bytes += segment.scanned_bytes();
    if (segment.context.number == 0) continue;
    if (totals.oldest == nullptr) totals.oldest = &segment;
    totals.newest = &segment;
    const uint64_t overwrites = segment.overwrites;
    totals.overwrites_min = counted == 0 ? overwrites : std::min(totals.overwrites_min, overwrites);
    totals.overwrites_max = std::max(totals.overwrites_max, overwrites);
    totals.overwrites_mean += static_cast<double>(overwrites);
    ++counted;
  }
  if (counted > 0) totals.overwrites_mean /= static_cast<double>(counted);
  return totals;
}

int64_t segments_in(const Inspection& found, State state) {
  return std::ranges::count(found.segments, state, &InspectedSegment::state);
}

int64_t current_values(const Inspection& found) {
  return std::ranges::count(found.damaged_values, Fate::kCurrent, &DamagedValue::fate);
}

std::string hex(const flash::Key& key) {
  std::string text;
  for (const std::byte byte : key) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

StoreJson name_of(const InspectedSegment* segment) {
  return segment == nullptr ? StoreJson(nullptr) : StoreJson(segment->file);
}

StoreJson segment_json(const Inspection& found, const InspectedSegment& segment) {
  return {{"file", segment.file},
          {"number", segment.context.number},
          {"state", flash::to_string(segment.state)},
          {"bytes", segment.size_bytes},
          {"used_bytes", segment.tail_bytes},
          {"values", segment.values(Fate::kCurrent)},
          {"value_bytes", segment.value_bytes()},
          {"replaced_values", segment.values(Fate::kReplaced)},
          {"removed_values", segment.values(Fate::kRemoved)},
          {"removals", segment.removals()},
          {"overwrites", segment.overwrites},
          {"checkpointed_bytes", covered_bytes(segment)},
          {"scan_bytes", segment.scanned_bytes()},
          {"damaged", found.damaged(segment)}};
}

StoreJson damage_json(const Inspection& found) {
  StoreJson values = StoreJson::array(), records = StoreJson::array();
  for (const DamagedValue& value : found.damaged_values)
    values.push_back({{"key", hex(value.key)},
                      {"fate", flash::to_string(value.fate)},
                      {"file", value.file},
                      {"offset", value.offset_bytes},
                      {"lanes", value.lanes},
                      {"problem", value.problem}});
  for (const DamagedRecord& record : found.damaged_records)
    records.push_back({{"part", flash::to_string(record.part)},
                       {"file", record.file},
                       {"offset", record.offset_bytes},
                       {"problem", record.problem}});
  return {{"damaged_values", std::move(values)}, {"damaged_records", std::move(records)}};
}

StoreJson removed_json(const std::vector<RemovedSegment>& removed) {
  StoreJson files = StoreJson::array();
  for (const RemovedSegment& segment : removed)
    files.push_back({{"file", segment.file},
                     {"bytes", segment.size_bytes},
                     {"values", segment.values ? StoreJson(*segment.values) : StoreJson(nullptr)}});
  return files;
}

// ---- text ----

std::string states_text(const Inspection& found) {
  std::vector<std::string> parts;
  for (const State state :
       {State::kSealed, State::kOpen, State::kFree, State::kDamaged, State::kUnreadable})
    if (const int64_t count = segments_in(found, state); count > 0)
      parts.push_back(fmt::format("{} {}", count, flash::to_string(state)));
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, ", "));
}

std::string foreign_text(const Inspection& found) {
  if (found.foreign.empty()) return "";
  return fmt::format("{} not HiFC's and left alone: {}\n", plural(found.foreign.size(), "file"),
                     fmt::join(found.foreign, ", "));
}

std::string segments_table(const Inspection& found) {
  constexpr auto kRight = Table::Align::kRight;
  Table table({{"segment"},
               {"number", kRight},
               {"state"},
               {"size", kRight},
               {"used", kRight},
               {"values", kRight},
               {"of bytes", kRight},
               {"replaced", kRight},
               {"removed", kRight},
               {"removals", kRight},
               {"overwrites", kRight},
               {"to scan", kRight},
               {""}});
  for (const InspectedSegment& segment : found.segments)
    table.add_row({segment.file, std::to_string(segment.context.number),
                   std::string(flash::to_string(segment.state)), format_size(segment.size_bytes),
                   format_size(segment.tail_bytes), std::to_string(segment.values(Fate::kCurrent)),
                   format_size(segment.value_bytes()),
                   std::to_string(segment.values(Fate::kReplaced)),
                   std::to_string(segment.values(Fate::kRemoved)),
                   std::to_string(segment.removals()), std::to_string(segment.overwrites),
                   format_size(segment.scanned_bytes()), found.damaged(segment) ? "damaged" : ""});
  return table.to_string();
}

std::string lanes_text(const DamagedValue& value) {
  return value.lanes.empty() ? "-" : fmt::format("{}", fmt::join(value.lanes, ","));
}

std::string damage_tables(const Inspection& found) {
  std::string text;
  Table records({{"record"}, {"file"}, {"offset", Table::Align::kRight}, {"what is wrong"}});
  for (const DamagedRecord& record : found.damaged_records)
    records.add_row({std::string(flash::to_string(record.part)), record.file,
                     std::to_string(record.offset_bytes), record.problem});
  if (!found.damaged_records.empty()) text += records.to_string() + "\n";
  Table values({{"key"},
                {"value"},
                {"file"},
                {"offset", Table::Align::kRight},
                {"lanes"},
                {"what is wrong"}});
  for (const DamagedValue& value : found.damaged_values)
    values.add_row({hex(value.key), value.fate == Fate::kCurrent ? "current" : "superseded",
                    value.file, std::to_string(value.offset_bytes), lanes_text(value),
                    value.problem});
  if (!found.damaged_values.empty()) text += values.to_string() + "\n";
  return text;
}

std::string removed_table(const std::vector<RemovedSegment>& removed) {
  if (removed.empty()) return "";
  Table table({{"segment"}, {"size", Table::Align::kRight}, {"values lost", Table::Align::kRight}});
  for (const RemovedSegment& segment : removed)
    table.add_row({segment.file, format_size(segment.size_bytes),
                   segment.values ? std::to_string(*segment.values) : "unknown"});
  return table.to_string() + "\n";
}

std::string_view would(Execution execution) {
  return execution == Execution::kDryRun ? "would be " : "";
}

}  // namespace

// ---- stat ----

StoreJson stat_json(const Inspection& found, SegmentRows rows) {
  const Totals totals = totals_of(found);
  StoreJson json = {{"directory", found.path},
                    {"layout_version", flash::kLayoutVersion},
                    {"bytes_on_disk", found.size_bytes()},
                    {"segments",
                     {{"total", found.segments.size()},
                      {"free", segments_in(found, State::kFree)},
                      {"open", segments_in(found, State::kOpen)},
                      {"sealed", segments_in(found, State::kSealed)},
                      {"damaged", segments_in(found, State::kDamaged)},
                      {"unreadable", segments_in(found, State::kUnreadable)}}},
                    {"oldest_segment", name_of(totals.oldest)},
                    {"newest_segment", name_of(totals.newest)},
                    {"values", totals.values},
                    {"value_bytes", totals.value_bytes},
                    {"replaced_values", totals.replaced},
                    {"removed_values", totals.removed},
                    {"removals", totals.removals},
                    {"overwrites",
                     {{"min", totals.overwrites_min},
                      {"mean", totals.overwrites_mean},
                      {"max", totals.overwrites_max}}},
                    {"checkpointed_bytes", totals.covered_bytes},
                    {"scan_bytes", totals.scanned_bytes},
                    {"damaged_records", found.damaged_records.size()},
                    {"foreign_files", found.foreign}};
  if (rows == SegmentRows::kNone) return json;
  json["segment_list"] = StoreJson::array();
  for (const InspectedSegment& segment : found.segments)
    json["segment_list"].push_back(segment_json(found, segment));
  return json;
}

std::string stat_text(const Inspection& found, SegmentRows rows) {
  const Totals totals = totals_of(found);
  Table table({{"directory"}, {found.path}});
  table.add_row({"layout", fmt::format("version {}", flash::kLayoutVersion)});
  table.add_row(
      {"on disk", fmt::format("{} in {}{}", format_size(found.size_bytes()),
                              plural(found.segments.size(), "segment"), states_text(found))});
  if (totals.oldest != nullptr)
    table.add_row(
        {"age", fmt::format("oldest {}, newest {}", totals.oldest->file, totals.newest->file)});
  table.add_row(
      {"values", fmt::format("{} of {}", totals.values, format_size(totals.value_bytes))});
  table.add_row({"superseded", fmt::format("{} replaced, {} removed; {}", totals.replaced,
                                           totals.removed, plural(totals.removals, "removal"))});
  table.add_row({"overwrites", fmt::format("min {}, mean {:.1f}, max {}", totals.overwrites_min,
                                           totals.overwrites_mean, totals.overwrites_max)});
  table.add_row({"checkpoints", fmt::format("{} covered, {} to be scanned when opening",
                                            format_size(totals.covered_bytes),
                                            format_size(totals.scanned_bytes))});
  if (!found.damaged_records.empty())
    table.add_row({"damaged", plural(found.damaged_records.size(), "record") +
                                  "; hifc store verify names them"});
  std::string text = table.to_string() + foreign_text(found);
  if (rows == SegmentRows::kAll) text += "\n" + segments_table(found);
  return text;
}

// ---- verify ----

StoreJson verify_json(const Inspection& found) {
  const Totals totals = totals_of(found);
  StoreJson json = {{"directory", found.path},
                    {"intact", found.intact()},
                    {"bytes_on_disk", found.size_bytes()},
                    {"segments", found.segments.size()},
                    {"values", totals.values},
                    {"superseded_values", totals.replaced + totals.removed},
                    {"damaged_current_values", current_values(found)}};
  json.update(damage_json(found));
  json["foreign_files"] = found.foreign;
  return json;
}

std::string verify_text(const Inspection& found) {
  const Totals totals = totals_of(found);
  const auto current = static_cast<uint64_t>(current_values(found));
  const uint64_t superseded = found.damaged_values.size() - current;
  std::string text = damage_tables(found);
  text += fmt::format("{} and {} superseded in {} ({}): ", plural(totals.values, "value"),
                      totals.replaced + totals.removed, plural(found.segments.size(), "segment"),
                      format_size(found.size_bytes()));
  text += found.intact()
              ? "all intact\n"
              : fmt::format("{} and {} superseded damaged, {} damaged\n", plural(current, "value"),
                            superseded, plural(found.damaged_records.size(), "record"));
  return text + foreign_text(found);
}

// ---- repair ----

StoreJson repair_json(const flash::Repair& repair, Execution execution) {
  StoreJson json = {{"directory", repair.found.path},
                    {"dry_run", execution == Execution::kDryRun},
                    {"repaired", repair.unrepaired.empty()}};
  json.update(damage_json(repair.found));
  json["removed_files"] = removed_json(repair.removed);
  json["restored_files"] = repair.restored;
  json["rewritten_files"] = repair.rewritten;
  json["unrepaired"] = repair.unrepaired;
  json["foreign_files"] = repair.found.foreign;
  return json;
}

std::string repair_text(const flash::Repair& repair, Execution execution) {
  std::string text = damage_tables(repair.found) + removed_table(repair.removed);
  if (repair.found.intact()) {
    text += "nothing is damaged\n";
  } else {
    text +=
        fmt::format("{} {}dropped, {} {}removed, {} {}given a new checkpoint\n",
                    plural(repair.found.damaged_values.size(), "damaged value"), would(execution),
                    plural(repair.removed.size(), "segment"), would(execution),
                    plural(repair.rewritten.size(), "segment"), would(execution));
  }
  for (const std::string& file : repair.unrepaired) text += "not repaired: " + file + "\n";
  return text + foreign_text(repair.found);
}

// ---- trim ----

StoreJson trim_json(const flash::Trim& trim, uint64_t target_bytes, Execution execution) {
  return {{"directory", trim.found.path},         {"dry_run", execution == Execution::kDryRun},
          {"target_bytes", target_bytes},         {"bytes_before", trim.found.size_bytes()},
          {"bytes_after", trim.size_bytes_after}, {"removed_files", removed_json(trim.removed)},
          {"foreign_files", trim.found.foreign}};
}

std::string trim_text(const flash::Trim& trim, Execution execution) {
  return removed_table(trim.removed) +
         fmt::format("{} {}removed, {} of {} {}left\n", plural(trim.removed.size(), "segment"),
                     would(execution), format_size(trim.size_bytes_after),
                     format_size(trim.found.size_bytes()), would(execution)) +
         foreign_text(trim.found);
}

}  // namespace hifc::apps

// What `hifc store` says: JSON for machines (docs/store-tools.md), tables for people.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "flash/repair.h"

namespace hifc::apps {

using StoreJson = nlohmann::ordered_json;

enum class SegmentRows : uint8_t { kNone, kAll };

StoreJson stat_json(const flash::Inspection& found, SegmentRows rows);
StoreJson verify_json(const flash::Inspection& found);
StoreJson repair_json(const flash::Repair& repair, flash::Execution execution);
StoreJson trim_json(const flash::Trim& trim, uint64_t target_bytes, flash::Execution execution);

std::string stat_text(const flash::Inspection& found, SegmentRows rows);
std::string verify_text(const flash::Inspection& found);
std::string repair_text(const flash::Repair& repair, flash::Execution execution);
std::string trim_text(const flash::Trim& trim, flash::Execution execution);

}  // namespace hifc::apps

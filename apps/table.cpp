#include "apps/table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hifc::apps {
namespace {

// UTF-8 continuation bytes take no room of their own.
size_t display_width(const std::string& text) {
  const auto starts_character = [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  };
  return static_cast<size_t>(std::ranges::count_if(text, starts_character));
}

void append_cell(std::string& line, const std::string& text, Table::Align align, size_t width) {
  const std::string padding(width - display_width(text), ' ');
  line += align == Table::Align::kRight ? padding + text : text + padding;
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  rows_.push_back(std::move(titles));
}

void Table::add_row(std::vector<std::string> cells) {
  HIFC_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::to_string() const {
  std::vector<size_t> widths(columns_.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      append_cell(line, row[i], columns_[i].align, widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace hifc::apps

// Aligned plain-text tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hifc::apps {

class Table {
 public:
  enum class Align : uint8_t { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns);

  void add_row(std::vector<std::string> cells);  // [columns]

  // The titles and the rows, a line each, columns two spaces apart, no space at the end of a line.
  // Characters outside ASCII count as one column.
  std::string to_string() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // [rows][columns]
};

}  // namespace hifc::apps

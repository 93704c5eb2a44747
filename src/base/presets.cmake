# Embeds presets/*.yaml as a source file, ${presets_source}, so that --preset works from anywhere
# and the files stay the one source. A changed or added file configures again.
file(GLOB preset_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/presets/*.yaml)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${preset_files})

set(preset_rows "")
foreach(preset_file IN LISTS preset_files)
  get_filename_component(preset_name ${preset_file} NAME_WE)
  file(READ ${preset_file} preset_yaml)
  string(APPEND preset_rows "    {\"${preset_name}\", R\"yaml(${preset_yaml})yaml\"},\n")
endforeach()

set(presets_source ${CMAKE_CURRENT_BINARY_DIR}/presets.cpp)
file(CONFIGURE OUTPUT ${presets_source} @ONLY CONTENT [[// Generated from presets/*.yaml.
#include <array>

#include "base/config.h"

namespace hifc {
namespace {

constexpr auto kPresets = std::to_array<Preset>({
@preset_rows@});

}  // namespace

std::span<const Preset> presets() { return kPresets; }

}  // namespace hifc
]])

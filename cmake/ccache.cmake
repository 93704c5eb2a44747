# Compiles through ccache where it is installed. Objects built with -march=native must not cross CPU
# types, so the cache is split by a digest of the CPU's model and features. Paths below the source
# tree are hashed relative to the build folder, which lets the presets share libllama's objects.

set(cpu_description ${CMAKE_HOST_SYSTEM_PROCESSOR})
if(EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo cpu_lines
       REGEX "^(vendor_id|cpu family|model|flags|Features|CPU implementer|CPU part)[\t ]*:")
  list(REMOVE_DUPLICATES cpu_lines)
  string(APPEND cpu_description "${cpu_lines}")
endif()
string(SHA256 HIFC_CPU_ID "${cpu_description}")
string(SUBSTRING ${HIFC_CPU_ID} 0 12 HIFC_CPU_ID)

find_program(HIFC_CCACHE ccache)
if(HIFC_CCACHE AND NOT DEFINED CACHE{CMAKE_CXX_COMPILER_LAUNCHER})
  foreach(language C CXX ASM)
    set(CMAKE_${language}_COMPILER_LAUNCHER
        env CCACHE_NAMESPACE=hifc-${HIFC_CPU_ID} CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${HIFC_CCACHE})
  endforeach()
endif()

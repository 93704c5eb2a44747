# Target hifc_build_info and its header hifc/build_info.h: version, commit, build type and compiler.
# The commit is looked up at each build; the source is rewritten, and recompiled, only when it has
# changed.

set(generated ${CMAKE_BINARY_DIR}/generated/hifc)
configure_file(${CMAKE_CURRENT_LIST_DIR}/build_info.h.in ${generated}/build_info.h COPYONLY)
add_custom_target(hifc_commit
  COMMAND ${CMAKE_COMMAND} -D SOURCE_DIR=${CMAKE_SOURCE_DIR}
          -D INPUT=${CMAKE_CURRENT_LIST_DIR}/build_info.cpp.in -D OUTPUT=${generated}/build_info.cpp
          -D VERSION=${PROJECT_VERSION} -D BUILD_TYPE=${CMAKE_BUILD_TYPE}
          -D "COMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
          -D "SANITIZE=${HIFC_SANITIZE}"
          -P ${CMAKE_CURRENT_LIST_DIR}/write_build_info.cmake
  BYPRODUCTS ${generated}/build_info.cpp
  COMMENT "" VERBATIM)
add_library(hifc_build_info STATIC ${generated}/build_info.cpp)
add_dependencies(hifc_build_info hifc_commit)
target_include_directories(hifc_build_info PUBLIC ${CMAKE_BINARY_DIR}/generated)

# Checks of the source tree: ctest tests style.*, and the target header_check, which compiles every
# header of src/ as the only include of a file.

if(HIFC_TESTS)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  foreach(check layers lines)
    add_test(NAME style.${check}
             COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/scripts/check-${check}
                     ${CMAKE_SOURCE_DIR})
    set_tests_properties(style.${check} PROPERTIES LABELS style)
  endforeach()
endif()

if(HIFC_HEADER_CHECK)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/src
       ${CMAKE_SOURCE_DIR}/src/*.h)
  # A *_inl.h is included once per instruction set by its source and is no header of its own.
  list(FILTER headers EXCLUDE REGEX "[-_]inl\\.h$|/cuda/")
  if(NOT HIFC_ENGINE)
    list(FILTER headers EXCLUDE REGEX "^(engine|server)/")
  endif()
  set(sources "")
  foreach(header IN LISTS headers)
    string(REGEX REPLACE "[/.]" "_" source ${header})
    set(source ${CMAKE_BINARY_DIR}/header_check/${source}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"  // IWYU pragma: keep\n")
    list(APPEND sources ${source})
  endforeach()
  add_library(header_check OBJECT ${sources})
  target_include_directories(header_check PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(header_check PRIVATE ${HIFC_WARNINGS} -O0)
  get_property(modules GLOBAL PROPERTY HIFC_MODULES)
  target_link_libraries(header_check PRIVATE ${modules} hifc_build_info)
  foreach(library hifc_llama GTest::gtest)
    if(TARGET ${library})
      target_link_libraries(header_check PRIVATE ${library})
    endif()
  endforeach()
endif()

# Run at each build by the target hifc_commit (build_info.cmake).
set(COMMIT "")
execute_process(
  COMMAND git -C ${SOURCE_DIR} describe --always --exclude=* --dirty --abbrev=12
  OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT COMMIT)
  set(COMMIT unknown)
endif()
if(SANITIZE)
  list(JOIN SANITIZE "," SANITIZE)
  string(APPEND BUILD_TYPE "+${SANITIZE}")
endif()
configure_file(${INPUT} ${OUTPUT} @ONLY)

# Applies HIFC_SANITIZE to every target declared after this file is included. Any report ends the
# program with a non-zero status, so that a test fails on it.

if(HIFC_SANITIZE)
  list(JOIN HIFC_SANITIZE "," names)
  add_compile_options(-fsanitize=${names} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${names})
endif()

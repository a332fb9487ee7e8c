# Files of src/report as C: FOLDER/page.css becomes `const char report_css[]`, in bytes, since a literal has a length limit.
set(text "#include \"report/report_internal.h\"\n\n")
foreach(kind css js)
  file(READ ${FOLDER}/page.${kind} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND text "const char report_${kind}[] = {\n${bytes}0};\n")
endforeach()
file(WRITE ${OUT} "${text}")

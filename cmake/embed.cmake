# Texts of the source tree as C, so that the program has them wherever it lies.

# tm_c_lines(TEXT OUT): the lines of TEXT as string literals with commas.
function(tm_c_lines text out)
  string(REPLACE "\\" "\\\\" text "${text}")
  string(REPLACE "\"" "\\\"" text "${text}")
  string(REPLACE "\n" "\",\n    \"" text "${text}")
  set(${out} "    \"${text}\",\n" PARENT_SCOPE)
endfunction()

# tm_glossary(FILE OUT): its lines, for `tidemill help terms`.
function(tm_glossary file out)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  tm_c_lines("${text}" lines)
  file(GENERATE OUTPUT ${out} CONTENT "/* Made of docs/GLOSSARY.md. */
extern const char *const tm_glossary[];
const char *const tm_glossary[] = {
${lines}    0};
")
endfunction()

# tm_templates(FOLDER OUT NAME...): each NAME.json in this order, as the table of tools/methods.h. All that lie there are named.
function(tm_templates folder out)
  file(GLOB there CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/*.json)
  set(texts "")
  set(rows "")
  foreach(name ${ARGN})
    list(REMOVE_ITEM there ${name}.json)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/${name}.json)
    file(READ ${folder}/${name}.json text)
    string(REGEX REPLACE "\n$" "" text "${text}")
    tm_c_lines("${text}" lines)
    string(APPEND texts "static const char *const ${name}_lines[] = {\n${lines}    0};\n")
    string(APPEND rows "    {\"${name}\", ${name}_lines},\n")
  endforeach()
  if(there)
    message(FATAL_ERROR "${folder}: ${there} is in no list of templates; name it where tm_templates is called")
  endif()
  file(GENERATE OUTPUT ${out} CONTENT "/* Made of examples/templates. */
#include \"tools/methods.h\"
${texts}const tm_method tm_methods[] = {
${rows}};
const size_t tm_method_count = TM_COUNT(tm_methods);
")
endfunction()

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

# tm_templates(FOLDER OUT): each NAME.json, for `tidemill new`: its name, its lines, NULL; NULL behind the last.
function(tm_templates folder out)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/*.json)
  set(all "")
  foreach(file ${files})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} text)
    string(REGEX REPLACE "\n$" "" text "${text}")
    tm_c_lines("${text}" lines)
    string(APPEND all "    \"${name}\",\n${lines}    0,\n")
  endforeach()
  file(GENERATE OUTPUT ${out} CONTENT "/* Made of examples/templates. */
extern const char *const tm_template_lines[];
const char *const tm_template_lines[] = {
${all}    0};
")
endfunction()

# Writes a C file that holds files as strings: cmake -DOUT=assets.c -DFILES="page.css;show.js" -P embed.cmake
# page.css becomes `const char page_css[]`, ended by a 0.
set(text "#include \"page/assets.h\"\n")
foreach(file IN LISTS FILES)
  file(READ "${file}" hex HEX)
  get_filename_component(name "${file}" NAME)
  string(REPLACE "." "_" name "${name}")
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${hex}")
  string(APPEND text "\nconst char ${name}[] = {\n${bytes}0};\n")
endforeach()
file(WRITE "${OUT}" "${text}")

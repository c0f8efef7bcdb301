# llama-cpp-python builds and installs llama.cpp's `common` library, two fifths of the files to compile, which
# nothing loads: its CMakeLists.txt forces it on in the cache, and a plain variable comes before the cache.
set(LLAMA_BUILD_COMMON OFF)

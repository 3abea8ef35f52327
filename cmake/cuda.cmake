# The CUDA back end is a plugin of its own, so that the program needs nothing of CUDA. Its sources are compiled by the
# CUDA compiler, and for tests by the C++ compiler, with an emulation of what they use of CUDA.
include(CheckLanguage)
file(GLOB FORGE_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)

# AUTO builds it for the machine that it is on: compiling for all architectures takes minutes.
set(FORGE_CUDA_FOUND OFF)
set(cuda_wanted ${FORGE_CUDA})
if(FORGE_CUDA STREQUAL "AUTO")
    set(cuda_wanted OFF)
    if(EXISTS /dev/nvidiactl)
        set(cuda_wanted ON)
    endif()
endif()
if(cuda_wanted AND FORGE_CUDA_SOURCES)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        # What the compiler is tried with; the plugin has its own list.
        list(GET FORGE_CUDA_ARCHITECTURES 0 CMAKE_CUDA_ARCHITECTURES)
        enable_language(CUDA)
        set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "") # the plugin says what it wants
        set(FORGE_CUDA_FOUND ON)
    endif()
endif()
if(FORGE_CUDA STREQUAL "ON" AND NOT FORGE_CUDA_FOUND)
    message(FATAL_ERROR "FORGE_CUDA=ON: no CUDA compiler found: install the CUDA toolkit, name its compiler with "
                        "-DCMAKE_CUDA_COMPILER=/path/to/nvcc, or use AUTO or OFF")
elseif(FORGE_CUDA STREQUAL "AUTO" AND NOT FORGE_CUDA_FOUND)
    message(STATUS "No NVIDIA device or no CUDA compiler: the CUDA back end (forge_cuda.so) is not built "
                   "(-DFORGE_CUDA=ON builds it without a device)")
endif()

set(FORGE_CUDA_EMULATED OFF)
if(FORGE_TESTS AND FORGE_CUDA_SOURCES AND NOT FORGE_SANITIZE)
    check_language(CXX)
    if(CMAKE_CXX_COMPILER)
        enable_language(CXX)
        set(FORGE_CUDA_EMULATED ON)
    else()
        message(STATUS "No C++ compiler: the CUDA back end is not tested in emulation")
    endif()
endif()

# What both have. fg_base's objects become the plugin's own and stay inside; its usage requirements are a C compiler's.
function(fg_cuda_plugin name)
    set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".so" OUTPUT_NAME ${name}
        CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
    add_dependencies(${name} fg_base)
    target_link_libraries(${name} PRIVATE $<TARGET_FILE:fg_base> Threads::Threads ${CMAKE_DL_LIBS})
    target_link_options(${name} PRIVATE LINKER:--exclude-libs,ALL)
    if(NOT FORGE_SANITIZE)
        target_link_options(${name} PRIVATE LINKER:--no-undefined)
    endif()
endfunction()

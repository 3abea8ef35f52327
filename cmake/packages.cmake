# Every third-party library in one place. Each is linked by one module only (PRIVATE).
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

function(fg_require name pkg package)
    pkg_check_modules(${name} IMPORTED_TARGET ${pkg})
    if(NOT ${name}_FOUND)
        message(FATAL_ERROR "${pkg} not found: install it with `apt-get install ${package}` "
                            "(deploy/quickstart installs everything)")
    endif()
endfunction()

fg_require(XXHASH libxxhash libxxhash-dev)
fg_require(JANSSON jansson libjansson-dev)
fg_require(UV libuv libuv1-dev)
fg_require(ZMQ libzmq libzmq3-dev)
fg_require(CURL libcurl libcurl4-openssl-dev)
fg_require(LZMA liblzma liblzma-dev)
fg_require(PROTOBUFC libprotobuf-c libprotobuf-c-dev)

# -DUCX_ROOT=FOLDER: another UCX than the system's, such as the one of the Python wheel libucx-cu13, which reaches GPU memory.
# Programs find it there at run time, and it finds its modules beside itself.
if(NOT "${UCX_ROOT}" STREQUAL "${UCX_ROOT_FOUND}") # what was found before is another one's
    unset(UCX_INCLUDE CACHE)
    unset(UCX_UCP CACHE)
    unset(UCX_UCS CACHE)
    set(UCX_ROOT_FOUND "${UCX_ROOT}" CACHE INTERNAL "")
endif()
if(UCX_ROOT)
    find_path(UCX_INCLUDE ucp/api/ucp.h PATHS ${UCX_ROOT}/include NO_DEFAULT_PATH)
    find_library(UCX_UCP ucp PATHS ${UCX_ROOT}/lib NO_DEFAULT_PATH)
    find_library(UCX_UCS ucs PATHS ${UCX_ROOT}/lib NO_DEFAULT_PATH)
    if(NOT UCX_INCLUDE OR NOT UCX_UCP OR NOT UCX_UCS)
        message(FATAL_ERROR "UCX_ROOT=${UCX_ROOT}: no include/ucp/api/ucp.h, lib/libucp.so and lib/libucs.so there")
    endif()
else()
    find_path(UCX_INCLUDE ucp/api/ucp.h)
    find_library(UCX_UCP ucp)
    find_library(UCX_UCS ucs)
    if(NOT UCX_INCLUDE OR NOT UCX_UCP OR NOT UCX_UCS)
        message(FATAL_ERROR "UCX not found: install it with `apt-get install libucx-dev`, or name its folder with -DUCX_ROOT=")
    endif()
endif()

find_path(LLHTTP_SOURCE llhttp.c PATHS /usr/share/llhttp NO_DEFAULT_PATH)
find_path(LLHTTP_INCLUDE llhttp.h PATHS /usr/share/include/llhttp NO_DEFAULT_PATH)
if(NOT LLHTTP_SOURCE OR NOT LLHTTP_INCLUDE)
    message(FATAL_ERROR "llhttp sources not found: install them with `apt-get install node-llhttp`")
endif()

find_program(PROTOC_C protoc-c)
if(NOT PROTOC_C)
    message(FATAL_ERROR "protoc-c not found: install it with `apt-get install protobuf-c-compiler`")
endif()

# environment openmp-intel+malloc-mimalloc: openmp=intel, malloc=mimalloc
export LD_PRELOAD={cache}/libraries/18d4ae7693730767ce4c4b7c/malloc-mimalloc/libmimalloc.so.2:{cache}/libraries/e83b9feea7aca2ac06c6b81e/openmp-intel/libiomp5.so

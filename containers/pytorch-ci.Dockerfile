# pytorch-ci: the settings of PyTorch's own CPU benchmarks
# openmp=intel, malloc=jemalloc-decay, threads=physical, affinity=compact, wait=blocktime-1
# Generated from matrix.yaml by `envmatrix definitions`; do not edit. Build it by hand:
#   envmatrix context pytorch-ci --output build/context
#   BASE=$(docker load -i build/context-base.tar | sed 's/.*: //')
#   docker build --network none --build-arg BASE=$BASE $(sed 's/^/--build-arg /' build/context.args) -f containers/pytorch-ci.Dockerfile -t envmatrix/pytorch-ci build/context

ARG VERSION="0.2.0"
ARG BASE_NAME="debian:bookworm-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251"
ARG BASE_DIGEST="sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251"
ARG LOCK=""
ARG BENCH=""
ARG SOURCE=""
ARG REVISION=""
ARG BASE=${BASE_NAME}
FROM ${BASE} AS build
LABEL org.envmatrix.stage="build"
COPY . /opt/context/
RUN touch /opt/context/started \
 && umask 022 \
 && if ls /opt/context/debs/*.deb >/dev/null 2>&1; then DEBIAN_FRONTEND=noninteractive apt-get -o APT::Sandbox::User=root install -qq -y --no-install-recommends --allow-downgrades /opt/context/debs/*.deb >/dev/null; fi \
 && python3 -m venv /opt/envmatrix/venv \
 && /opt/envmatrix/venv/bin/python3 -m pip install -q --disable-pip-version-check --no-cache-dir --no-index --no-deps --no-compile --require-hashes --find-links /opt/context/wheels -r /opt/context/wheels/requirements.txt \
 && rm -rf /opt/envmatrix/venv/lib/python3*/site-packages/pip* /opt/envmatrix/venv/bin/pip* \
 && { PYTHONHASHSEED=0 /opt/envmatrix/venv/bin/python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash /opt/envmatrix/venv/lib || true; } \
 && mkdir -p /opt/envmatrix/lib /envmatrix/bench /envmatrix/data /work \
 && tar -xf /opt/context/lib.tar -C /opt/envmatrix/lib \
 && cp -R /opt/context/bench/. /envmatrix/bench/ \
 && chmod -R u=rwX,go=rX /opt/envmatrix/lib /envmatrix \
 && chmod 1777 /work \
 && mkdir -p /opt/envmatrix/etc && touch /opt/envmatrix/etc/hosts /opt/envmatrix/etc/hostname /opt/envmatrix/etc/resolv.conf \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/cache/fontconfig/* /var/log/* /root/.cache \
 && find / -xdev ! -path /etc/hosts ! -path /etc/hostname ! -path /etc/resolv.conf -newer /opt/context/started -exec touch -h -d @1735689600 {} + \
 && rm -rf /opt/context \
 && touch -d @1735689600 /opt

FROM scratch
COPY --from=build / /
COPY --from=build /opt/envmatrix/etc/ /etc/
ENV PATH="/opt/envmatrix/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV HOME="/tmp"
ENV TMPDIR="/tmp"
ENV LANG="C.UTF-8"
ENV PYTHONPATH="/envmatrix"
ENV PYTHONNOUSERSITE="1"
ENV PYTHONDONTWRITEBYTECODE="1"
ENV PYTHONHASHSEED="0"
# on your machine, run it with --env OMP_NUM_THREADS={physical_cores}
ENV MALLOC_CONF="abort_conf:true,oversize_threshold:1,background_thread:true,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"
ENV KMP_AFFINITY="granularity=fine,compact,1,0"
ENV KMP_BLOCKTIME="1"
ENV LD_PRELOAD="/opt/envmatrix/lib/malloc-jemalloc-decay/libjemalloc.so.2:/opt/envmatrix/lib/openmp-intel/libiomp5.so"
WORKDIR /work
USER 65532:65532
ENTRYPOINT ["env", "PYTHONSAFEPATH=1", "python3", "-m", "bench"]
ARG VERSION
ARG BASE_NAME
ARG BASE_DIGEST
ARG LOCK
ARG BENCH
ARG SOURCE
ARG REVISION
LABEL org.envmatrix.bench="${BENCH}" \
      org.envmatrix.levels="{\"affinity\": \"compact\", \"compiler\": \"inductor\", \"cuda-allocator\": \"default\", \"cuda-connections\": \"default\", \"cuda-loading\": \"default\", \"cudnn-cache\": \"default\", \"cudnn-version\": \"default\", \"device\": \"cpu\", \"fp32-maths\": \"default\", \"gloo\": \"default\", \"gpu-blas\": \"default\", \"gpu-linalg\": \"default\", \"gpu-placement\": \"anywhere\", \"horovod\": \"default\", \"hugepages\": \"default\", \"inductor\": \"default\", \"isa\": \"default\", \"libfabric\": \"default\", \"malloc\": \"jemalloc-decay\", \"matmul-min-dim\": \"default\", \"mkl-threads\": \"default\", \"mpich\": \"default\", \"nccl\": \"default\", \"nccl-streams\": \"default\", \"nccl-version\": \"default\", \"nvte-margin\": \"default\", \"onednn-cache\": \"default\", \"openmp\": \"intel\", \"openmp-barrier\": \"default\", \"openmp-dynamic\": \"default\", \"openmp-schedule\": \"default\", \"processes\": \"default\", \"rocm\": \"default\", \"tf32\": \"default\", \"threads\": \"physical\", \"torch\": \"2.13.0\", \"wait\": \"blocktime-1\"}" \
      org.envmatrix.lock="${LOCK}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      org.opencontainers.image.base.name="${BASE_NAME}" \
      org.opencontainers.image.created="2025-01-01T00:00:00Z" \
      org.opencontainers.image.description="the settings of PyTorch's own CPU benchmarks" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.title="envmatrix/pytorch-ci" \
      org.opencontainers.image.version="${VERSION}"

# torch-2.6: PyTorch 2.6.0 as Debian trixie builds it
# torch=debian-2.6.0
# Generated from matrix.yaml by `envmatrix definitions`; do not edit. Build it by hand:
#   envmatrix context torch-2.6 build/context
#   docker build --network none -f containers/torch-2.6.Dockerfile -t envmatrix/torch-2.6 build/context

ARG BASE="debian:trixie-slim@sha256:3a39a0592364683e6bab97937b72cad5a8fa6dcbbee90edb3bb48c7f8e94f258"
FROM ${BASE} AS build
LABEL org.envmatrix.stage="build"
COPY . /opt/context/
RUN if ls /opt/context/debs/*.deb >/dev/null 2>&1; then DEBIAN_FRONTEND=noninteractive apt-get -o APT::Sandbox::User=root install -qq -y --no-install-recommends --allow-downgrades /opt/context/debs/*.deb >/dev/null; fi \
 && mkdir -p /opt/envmatrix/lib /envmatrix/bench /envmatrix/data /work \
 && cp -R /opt/context/lib/. /opt/envmatrix/lib/ \
 && cp -R /opt/context/bench/. /envmatrix/bench/ \
 && chmod -R a+rX /opt/envmatrix/lib /envmatrix \
 && chmod 1777 /work \
 && mkdir -p /opt/envmatrix/etc && touch /opt/envmatrix/etc/hosts /opt/envmatrix/etc/hostname /opt/envmatrix/etc/resolv.conf \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /root/.cache \
 && rm -rf /opt/context

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
LABEL org.opencontainers.image.title="envmatrix/torch-2.6"
WORKDIR /work
USER 65532:65532
CMD ["python3", "-m", "bench"]

# syntax=docker/dockerfile:1

FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /source
# The image's own toolchain, without the linters that rust-toolchain.toml asks for.
ENV RUSTUP_TOOLCHAIN=1.95.0
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --locked --profile dist \
    && cp target/dist/holdpoint /usr/local/bin/holdpoint

FROM debian:bookworm-slim
# Roots for outbound TLS, and an init that reaps the processes that commands of tools leave; /bin/sh stays, since
# shell tools run by it.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates tini \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 10001 holdpoint \
    && useradd --system --uid 10001 --gid holdpoint --no-create-home --home-dir /var/lib/holdpoint holdpoint \
    && install --directory --owner=holdpoint --group=holdpoint --mode=0700 /var/lib/holdpoint
COPY --from=build /usr/local/bin/holdpoint /usr/local/bin/holdpoint
USER 10001:10001
WORKDIR /var/lib/holdpoint
ENV HOLDPOINT_SERVER__LISTEN=0.0.0.0:8080
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 CMD ["holdpoint", "health"]
ENTRYPOINT ["tini", "-s", "--", "holdpoint"]
CMD ["serve"]

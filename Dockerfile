# syntax=docker/dockerfile:1
#
# Two images, each one static binary without a shell, running as a user without
# rights:
#
#   docker build --target boxkeeper -t boxkeeper .   # workers and command line
#   docker build --target boxd -t boxd .             # what runs inside a box
#
# boxd is meant to be copied into a box's own image:
#
#   COPY --from=boxd /boxd /usr/local/bin/boxd

FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm AS build
ARG TARGETOS TARGETARCH
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ENV CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    go build -buildvcs=false -trimpath -ldflags "-s -w" -o /out/ ./cmd/boxkeeper ./cmd/boxd
# An image of one file has no directories of its own. The worker needs /data
# for what it keeps and /tmp for what it spools, both owned by its user.
RUN mkdir -p /skeleton/data && mkdir -m 1777 /skeleton/tmp

FROM scratch AS boxd
COPY --from=build /out/boxd /boxd
USER 65532:65532
ENTRYPOINT ["/boxd"]

FROM scratch AS boxkeeper
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build --chown=65532:65532 /skeleton/ /
COPY --from=build /out/boxkeeper /boxkeeper
USER 65532:65532
WORKDIR /data
VOLUME /data
ENTRYPOINT ["/boxkeeper"]
CMD ["worker"]

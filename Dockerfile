# syntax=docker/dockerfile:1
FROM golang:1.27.3-bookworm AS build
WORKDIR /src
ENV CGO_ENABLED=0 GOFLAGS=-trimpath
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY internal internal
ARG VERSION=dev
RUN go build -ldflags "-s -w -X doorward.dev/doorward/internal/cli.version=${VERSION}" -o /out/doorward ./cmd/doorward \
 && mkdir -p /out/data && chown 1000:1000 /out/data

# Servers that are started as child processes (npx, uvx, …) need their runtime: build FROM this image's binary on a base that
# has it. Servers over HTTP and the built-in ones need nothing more than this.
FROM gcr.io/distroless/static-debian12
COPY --from=build /out/doorward /usr/local/bin/doorward
COPY --from=build --chown=1000:1000 /out/data /data
USER 1000:1000
ENV DOORWARD_DATA=/data DOORWARD_LISTEN=0.0.0.0:8420
VOLUME /data
EXPOSE 8420
STOPSIGNAL SIGTERM
# Beyond the container's loopback it wants TLS (tls.cert, tls.key) or DOORWARD_INSECURE_LISTEN=true behind a proxy.
ENTRYPOINT ["/usr/local/bin/doorward"]
CMD ["serve"]

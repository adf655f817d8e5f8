#!/bin/sh
# What a container runs: `docker run IMAGE MODEL --option …` is `python -m serve MODEL --option …`. A command that the
# container has (ray, serve, python, a shell) runs as it stands.
is_command() {
    case "$1" in
        -*) false ;;
        */*) [ -f "$1" ] && [ -x "$1" ] ;;
        *) command -v "$1" > /dev/null ;;
    esac
}

# The image for CPUs sets it: which instructions the CPU has is known when a container starts. Building the kernels
# takes a minute; where the CPU cannot run them, decoding works without.
if [ -n "${PASTA_BUILD_KERNELS-}" ]; then
    python -m jobs.kernels
fi
if ! is_command "${1-}"; then
    set -- python -m serve "$@"
fi
exec "$@"

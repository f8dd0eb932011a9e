#!/bin/sh
# Makes requirements.txt and requirements-cuda.txt beside this file from pyproject.toml and
# constraints.txt: all that the images install, with the hashes of each file of each release. Needs uv.
set -eu
cd "$(dirname "$0")/.."
uv pip compile pyproject.toml --extra cluster --constraint docker/constraints.txt --quiet \
  --python-version 3.11 --universal --generate-hashes --no-annotate --no-header --no-emit-index-url |
  awk '/^[^ ]/ { is_cuda = /^(cuda|nvidia|torch|triton)/ && !/^nvidia-ml-py/
                 name = is_cuda ? "requirements-cuda.txt" : "requirements.txt" }
    { print > "docker/" name }'

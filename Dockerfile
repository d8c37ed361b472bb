# Samovar with PyTorch for the CPU.
#
#   docker build --tag samovar .
#   docker run --rm --init --volume "$PWD:/work" --user "$(id -u):$(id -g)" samovar train --solver solver.prototxt
#
# See docs/how-to/install.md.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim-trixie AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/samovar
WORKDIR /source
# PyTorch comes first: a change of our source does not fetch it again.
COPY constraints.txt ./
RUN /opt/samovar/bin/pip install --no-cache-dir --constraint constraints.txt \
    --index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple torch numpy
COPY pyproject.toml CMakeLists.txt README.md CHANGELOG.md SECURITY.md LICENSE ./
COPY native native
COPY src src
RUN /opt/samovar/bin/pip install --no-cache-dir --constraint constraints.txt '.[digits,leveldb]'

FROM python:${PYTHON}-slim-trixie
COPY --from=build /opt/samovar /opt/samovar
ENV PATH=/opt/samovar/bin:$PATH \
    HOME=/tmp
RUN useradd --uid 1000 --no-create-home samovar \
    && install --directory --owner=samovar --group=samovar /work
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["samovar"]
CMD ["doctor"]

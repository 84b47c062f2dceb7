# The CPU image: the server and the client, as an ordinary user.
#   docker build -f docker/cpu.Dockerfile -t opbox:cpu .
#   docker run --rm -p 127.0.0.1:8000:8000 -e OPBOX_TOKEN=$(openssl rand -hex 16) opbox:cpu
ARG BASE=docker.io/library/python:3.11-slim-bookworm
FROM ${BASE}

COPY constraints.txt /src/
COPY protocol /src/protocol
COPY ops /src/ops
COPY client /src/client
COPY service /src/service
# One layer: the environment in, the sources and pip's cache out.
RUN python3 -m venv /opt/opbox \
 && /opt/opbox/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
      -c /src/constraints.txt /src/protocol /src/ops /src/client /src/service \
 && rm -rf /src

ENV PATH=/opt/opbox/bin:$PATH PYTHONUNBUFFERED=1 OPBOX_HOST=0.0.0.0 OPBOX_PORT=8000
RUN useradd --create-home --uid 10001 opbox
# By number: Kubernetes can tell only of a number that it is not root (runAsNonRoot).
USER 10001
WORKDIR /home/opbox
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
  CMD ["python3", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ['OPBOX_PORT']}/v2/health/live\", timeout=2)"]
CMD ["opbox", "serve"]

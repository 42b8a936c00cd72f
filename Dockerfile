# snapkv and cdcmeta, as docs/howto/run.md uses them: docker build -t registry.example.com/snapkv:1 .
# python -m tools.image runs these steps, in Docker or in a fresh root, and tries what they make.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ARG EXTRAS=http,kubernetes,metrics,ui
COPY . /src
RUN python -m venv /opt/snapkv
RUN /opt/snapkv/bin/pip install --no-cache-dir --no-compile "/src[$EXTRAS]"

FROM python:${PYTHON}-slim
COPY --from=build /opt/snapkv /opt/snapkv
RUN install -d -o 10001 -g 10001 /var/lib/snapkv
ENV PATH=/opt/snapkv/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1
# A number, because Kubernetes cannot tell of a name that it is not root's.
USER 10001:10001
WORKDIR /var/lib/snapkv
ENTRYPOINT ["snapkv"]
CMD ["--help"]

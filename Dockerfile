# Two stages: the first installs from the lock, the second holds the result and nothing that builds.
FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /app
# What the lock names is a layer of its own: a change of the code does not install it again.
COPY requirements/base.txt requirements/base.txt
RUN python -m venv --without-pip /opt/citewire \
    && python -m pip --python /opt/citewire/bin/python install --require-hashes -r requirements/base.txt
COPY pyproject.toml README.md ./
COPY alembic alembic
COPY backend backend
# The package stays in /app, beside its migrations; hatchling only writes the command and the path to it.
RUN python -m pip --python /opt/citewire/bin/python install --no-deps --no-build-isolation --editable . \
    && python -m pip --python /opt/citewire/bin/python uninstall --yes hatchling editables \
    && python -m compileall -q /app/backend /app/alembic

FROM python:3.11-slim
# PostgreSQL wants a user with a name, so the number alone would not do for the embedded one.
RUN python -m pip uninstall --yes --root-user-action=ignore setuptools wheel pip \
    && groupadd --gid 10001 citewire \
    && useradd --uid 10001 --gid citewire --no-create-home --home-dir /data --shell /usr/sbin/nologin citewire \
    && install --directory --owner=citewire --group=citewire --mode=0700 /data
COPY --from=build /opt/citewire /opt/citewire
COPY --from=build /app /app
ENV PATH=/opt/citewire/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOST=0.0.0.0 PORT=8000 DATA_DIR=/data
USER citewire
WORKDIR /data
VOLUME /data
EXPOSE 8000
# Alive, not ready: a restart, which is what follows in a cluster, brings no database back.
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s --retries=3 \
    CMD ["python", "-c", "import http.client as h, os, sys; c = h.HTTPConnection('127.0.0.1', int(os.environ['PORT']), timeout=4); c.request('GET', '/health/live'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["citewire"]
CMD ["serve"]

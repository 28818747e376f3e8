# The executor with handlers, as compose/README.md describes such an image.
ARG TIDEWHEEL
FROM ${TIDEWHEEL}
COPY work.py /opt/work/work.py
ENV PYTHONPATH=/opt/work TIDEWHEEL_HANDLERS=work

# Debian's Python under the name that compose/Dockerfile uses, with this machine's certificates and package index.
FROM trial/debian
COPY ca-certificates.crt pip.con[f] /etc/machine/
RUN ln -s python3 /usr/bin/python
ENV PIP_CERT=/etc/machine/ca-certificates.crt PIP_CONFIG_FILE=/etc/machine/pip.conf PIP_DEFAULT_TIMEOUT=180

# docker build -t <user>/kata .
# docker run --gpus=all --shm-size=8g -v "$PWD":/work <user>/kata kata launch -- train --config=configs/act.yaml …
#
# The image that `kata launch --target=hf:<flavor> --image=<user>/kata` runs. torch and PyAV bring CUDA and FFmpeg in
# their wheels; the driver comes from the host. The versions are those of constraints.txt.
FROM python:3.12-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends git libgl1 libegl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/kata
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
COPY configs ./configs
COPY scripts ./scripts
RUN pip install --no-cache-dir --constraint constraints.txt uv \
    && uv pip install --system --no-cache --compile-bytecode --constraint constraints.txt '.[wandb,tensorboard,pusht,aloha]'

# Wheels hold no compiler cache; ranks share memory through /dev/shm, see --shm-size above.
ENV PYTHONUNBUFFERED=1 MUJOCO_GL=egl
WORKDIR /work
CMD ["kata", "--help"]

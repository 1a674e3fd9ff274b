# Everything runs inside .venv, which `make setup` builds from pyproject.toml and constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
export MPLBACKEND := Agg
# Some images set it. Every process would then compile what it imports, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test check setup format long peer bench kill soak slurm constraints clean

train: setup
	$(BIN)/kata quickstart

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 0 tests/house
	$(BIN)/python tools/peer/resolve.py

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=<path>")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	touch $@

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# LeRobot 0.6.1 in an environment of its own (.peer, about 6 GB): parity of data, policy and checkpoints.
peer: setup
	$(BIN)/python tools/peer/run.py

# kata against LeRobot 0.6.1 on datasets that LeRobot wrote (data/bench, about 750 MB): an hour on two idle cores. Reading,
# streaming, and LeRobot's training script with kata's Loader.
bench: setup
	$(BIN)/python tools/peer/setup.py
	$(BIN)/python -m benchmarks.lab --root=data/bench --make --peer
	$(BIN)/python -m benchmarks.streaming.beside_lerobot data/bench --out=benchmarks/results/streaming_beside_lerobot.json
	$(BIN)/python -m benchmarks.streaming.lerobot_script data/bench/b --out=benchmarks/results/lerobot_script.json

# Machines made of network namespaces that are killed and cut off, and jobs that go on from what they uploaded.
long: setup
	$(BIN)/python -m pytest -n 0 -m long

# Kills a hundred training runs at random moments and compares what they leave with straight runs; kills learner and actor
# of `kata rl`, and counts episodes.
kill: setup
	$(BIN)/python tools/kill/run.py --kills 100
	$(BIN)/python tools/kill/run.py --kills 20 --only "learning by acting"
	$(BIN)/python tools/kill/network.py --kills 30

# Streams 100,000 batches through a proxy that fails every twentieth request: order and pixels of the disk, memory flat.
# DATASET is a folder, such as a copy of lerobot/pusht.
soak: setup
	$(BIN)/python -m benchmarks.streaming.soak $(DATASET) --batches=100000 --batch_size=4 --encoded_memory_mb=2 --frame_memory_mb=16 --out=soak.json

# A two-node run under a real SLURM on this machine: preempted, requeued, compared. Installs Debian's packages; needs root.
slurm: setup
	$(BIN)/python tools/slurm/run.py --install

# Take up newer versions: resolve afresh and keep what was found. torch stays at the version tested on GPUs.
constraints: setup
	echo 'torch==2.11.*' > .venv/pins.txt
	$(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url --upgrade --extra dev --extra pusht --extra aloha --extra torchcodec \
		--constraint .venv/pins.txt pyproject.toml -o constraints.txt
	$(BIN)/uv --version | sed 's/^uv \([^ ]*\).*/uv==\1/' >> constraints.txt

clean:
	rm -rf .venv outputs

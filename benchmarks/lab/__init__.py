"""The laboratory: kata's reader against LeRobot's on the same files, and targets for the ratios.

`python -m benchmarks.lab <folder of datasets> --peer`, from the root of the repository.
"""

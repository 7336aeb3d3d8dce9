"""Parameters as Maestro's samples make them: all combinations of sizes and iterations."""

import itertools

from maestrowf.datastructures.core import ParameterGenerator


def get_custom_generator(env, **kwargs):
    first = int(kwargs.get("smin", env.find("SMIN").value))
    sizes = range(first, int(kwargs.get("smax", 30)) + 1, 10)
    combinations = list(itertools.product(sizes, (100, 200)))
    generator = ParameterGenerator()
    generator.add_parameter("TRIAL", list(range(len(combinations))), "TRIAL.%%")
    generator.add_parameter("SIZE", [size for size, _ in combinations], "SIZE.%%")
    generator.add_parameter("ITER", [iterations for _, iterations in combinations], "ITER.%%")
    return generator

"""A second, slow and plain implementation of the protocol: the expected answer to every event.

It shares no code with the engine and the parts but their declarations (hyper-parameters and properties) and
the classes of events and actions. Whatever the engine keeps up to date as it goes (counts, clocks, who holds
which version), this finds by looking at every worker again. The fuzzer asks both after every event.
"""

from psbench_fuzz.model.interpreter import Interpreter

__all__ = ["Interpreter"]

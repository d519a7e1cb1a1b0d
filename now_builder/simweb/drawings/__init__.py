"""The drawings: a module per family, a function per topic, three variants each or more."""

"""Published strategies, and kinds of the parts that scenarios can name, such as codecs or networks.

The modules import ``fedsim.strategies`` and the packages that ``fedsim.strategies`` imports.
"""

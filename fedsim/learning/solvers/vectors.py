"""Vector registers in compiled loops: numba's own loops have them only where its compiler finds them."""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils as _untyped

cgutils: Any = _untyped  # numba has no annotations

REGISTER = 64 if llvm.get_host_cpu_features().get("avx512f") else 32
"""Bytes in a register."""

INT, SHORT = ir.IntType(64), ir.IntType(32)


class Vectors:
    """Writes code that works on registers full of numbers.

    Args:
        builder: where the code goes.
        number: type of the numbers, in LLVM.
        bits: of a number.
        count: how many numbers of a register to load and store, as a value of the code; None for all.

    Attributes:
        lanes: numbers in a register.
        type: a register's, in LLVM.
    """

    def __init__(self, builder: Any, number: Any, bits: int, count: Any = None) -> None:
        self._builder, self._bits, self.lanes = builder, bits, REGISTER * 8 // bits
        self.type, self._flags = ir.VectorType(number, self.lanes), ir.VectorType(ir.IntType(1), self.lanes)
        self._within = None
        if count is not None:
            lane = ir.Constant(ir.VectorType(INT, self.lanes), list(range(self.lanes)))
            self._within = builder.icmp_signed("<", lane, self.spread(count))

    def spread(self, value: Any) -> Any:
        """One number in all places."""
        one = self._builder.insert_element(ir.Constant(ir.VectorType(value.type, self.lanes), ir.Undefined), value, SHORT(0))
        return self._builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(SHORT, self.lanes), None))

    def constant(self, value: float) -> Any:
        """The same, of a number that is known."""
        return ir.Constant(self.type, [value] * self.lanes)

    def multiply_add(self, factor: Any, value: Any, summand: Any) -> Any:
        """factor value + summand, rounded once where the processor can."""
        return self._call("fmuladd", self.type, factor, value, summand)

    def load(self, place: Any) -> Any:
        """What is there; zeros beyond the count."""
        at, align = self._builder.bitcast(place, self.type.as_pointer()), self._bits // 8
        if self._within is None:
            return self._builder.load(at, align=align)
        return self._call("masked.load", self.type, at, SHORT(align), self._within, self.constant(0.0))

    def store(self, value: Any, place: Any) -> None:
        """Put it there."""
        at, align = self._builder.bitcast(place, self.type.as_pointer()), self._bits // 8
        if self._within is None:
            self._builder.store(value, at, align=align)
        else:
            self._call("masked.store", ir.VoidType(), value, at, SHORT(align), self._within)

    def _call(self, name: str, result: Any, *given: Any) -> Any:
        known, name = ir.FunctionType(result, [value.type for value in given]), f"llvm.{name}.v{self.lanes}f{self._bits}"
        return self._builder.call(cgutils.get_or_insert_function(self._builder.module, known, name), given)

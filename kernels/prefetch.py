"""Ask memory for what will be read soon, so that it is here when its turn comes.

    row n      | being multiplied |                     a few rows ahead: no wait, nothing is read twice
    row n + 4                        | on its way |

A CPU foresees a long walk by itself, but no further than the end of a page of 4 KB, which is seven rows of 576 bytes.
So it waits at the beginning of each, unless somebody asks earlier. numba knows no such instruction, LLVM does."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from .jit import compiled

Codes = NDArray[np.int8]

LINE = 64  # bytes that come together
READ, KEEP, DATA = 0, 3, 1  # llvm.prefetch's arguments


def request(_: Any, matrix: Any, row: Any, column: Any) -> Any:
    """Begin to load matrix[row, column], which must exist, and its neighbours."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, (array, *place) = signature.args[0], args
        item = cgutils.get_item_pointer(
            context, builder, kind, context.make_array(kind)(context, builder, array), place, wraparound=False
        )
        number = ir.IntType(32)
        pointer = builder.bitcast(item, ir.IntType(8).as_pointer())
        wanted = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, wanted, "llvm.prefetch.p0")
        builder.call(function, [pointer, number(READ), number(KEEP), number(DATA)])
        return context.get_dummy_value()

    return types.void(matrix, types.intp, types.intp), generate


prefetch: Callable[[Codes, int, int], None] = cast("Any", intrinsic)(request)


@compiled()
def fetch_row(matrix: Codes, row: int) -> None:
    """Begin to load a row of a matrix of bytes."""
    for column in range(0, matrix.shape[1], LINE):
        prefetch(matrix, row, column)

"""What a case holds and few of its tests ask for."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from dpjax.testing import Statistic


class Later(Sequence[Statistic]):
    """Statistics made when first asked for, as most take a run of their solver to make."""

    def __init__(self, make: Callable[[], Sequence[Statistic]]) -> None:
        self._made = functools.cache(make)

    def __getitem__(self, index: Any) -> Any:
        return self._made()[index]

    def __len__(self) -> int:
        return len(self._made())

"""What the estimators have in common: budgets, public bounds, seeds, and warnings."""

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import special
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import validate_data

from dpjax.api._public_size import default_delta, public_size
from dpjax.core import check_choice, check_type
from dpjax.privacy import Budget
from dpjax.privacy._guarantee import epsilon_line
from dpjax.privacy._warnings import PrivacyWarning as PrivacyWarning
from dpjax.random import secret_key
from dpjax.runtime.checkpoint._digest import value_digest

RELATIONS = ("replace_one", "add_or_remove_one")


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(BaseEstimator):
    """A budget, the key of a fit, and the relation and what a fit has cost in every repr."""

    epsilon: float = 1.0
    delta: float | None = None
    relation: str = "replace_one"
    num_records: int | None = None
    random_state: object = None

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Parameters that are not the default, and the relation."""
        shown: str = super().__repr__(N_CHAR_MAX)
        name, _, rest = shown.partition("(")
        if "relation=" not in rest:
            relation = f"relation={self.relation!r}"
            shown = f"{name}({relation}{'' if rest == ')' else ', '}{rest}"
        if hasattr(self, "guarantee_"):
            line = epsilon_line(self.guarantee_, self.delta_)
            shown += f"\n  fitted: {line}, relation={self.guarantee_.relation.name.lower()!r}"
        return shown

    def _public_size(self, present: int, *, bounds: bool = True) -> tuple[int, Budget]:
        """The public number of records of so many, and the budget of a fit."""
        check_choice("relation", self.relation, RELATIONS)
        size = public_size(self.num_records, self.relation, present, bounds=bounds)
        delta = default_delta(size) if self.delta is None else self.delta
        return size, Budget(self.epsilon, delta, self.relation)

    def _key(self, size: int, *records: object) -> jax.Array:
        public = {**self.get_params(), "random_state": None, "n": size}
        if public.get("tune", ()) is None:
            del public["tune"]  # a seed gives the same model as before `tune` was added
        return key_for(self.random_state, type(self).__name__, public, *records)

    def _spent(self, guarantee: Any, budget: Budget) -> None:
        self.guarantee_, self.delta_ = guarantee, budget.delta
        self.epsilon_ = guarantee.epsilon(budget.delta)


class LinearClassifier(ClassifierMixin):
    """Predictions from logits: of the second class alone, `[n]`, or of all, `[n, K]`."""

    classes_: np.ndarray
    decision_function: Callable[[ArrayLike], np.ndarray]

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The likeliest class of each record, `[n]`."""
        scores = self.decision_function(X)
        codes = (scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)
        return self.classes_[codes]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities of the classes, `[n, K]`."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return special.expit(np.stack([-scores, scores], axis=1))
        return special.softmax(scores, axis=1)

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """Their logarithms, `[n, K]`."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return special.log_expit(np.stack([-scores, scores], axis=1))
        return special.log_softmax(scores, axis=1)


def public_codes(name: str, values: np.ndarray, public: ArrayLike | None) -> tuple[Any, np.ndarray]:
    """The distinct values, sorted, and each record's code among them.

    Args:
      name: Of the argument that says which values there are.
      values: One a record, `[n]` (*secret*).
      public: The values that there may be (*public*); None reads them from the data, and warns.

    Returns:
      The values `[K]` and codes `[n]` int32 (*secret*).

    Raises:
      ValueError: If a public value is given twice, a record has another, or there is but one.
    """
    if public is None:
        warnings.warn(
            f"{name} is None: the values that occur are read from the data, which the guarantee "
            f"does not cover; pass {name}=, the values that are publicly known",
            PrivacyWarning,
            stacklevel=3,
        )
        labels, codes = np.unique(values, return_inverse=True)
        codes = codes.reshape(-1).astype(np.int32)
    else:
        labels = np.unique(np.asarray(public))
        if np.shape(public) != labels.shape:
            raise ValueError(f"{name} must be distinct values of shape [K], got {public!r}")
        index = {label: code for code, label in enumerate(labels.tolist())}
        codes = np.array([index.get(value, -1) for value in values.tolist()], np.int32)
        if np.any(codes < 0):
            raise ValueError(
                f"{name} must hold every value that occurs: {np.sum(codes < 0)} of {len(codes)} "
                "records have another"
            )
    if len(labels) < 2:
        raise ValueError(f"{name} must be >= 2, got 1: with 1 class or group nothing is told apart")
    return labels, codes


def checked_rows(estimator: object, *given: Any, **options: object) -> Any:
    """What scikit-learn's `validate_data` returns; of a cell that is no number, nothing is said."""
    try:
        return validate_data(estimator, *given, dtype=[np.float64, np.float32], **options)
    except ValueError as error:
        if "could not convert" in str(error):  # NumPy's message shows the cell
            raise ValueError("X must hold numbers, got text") from None
        raise


def with_options(candidates: Any, options: dict[str, Any]) -> Any:
    """Candidates; options that they leave open keep their values without tuning."""
    if callable(candidates):
        return lambda key: options | dict(candidates(key))
    what = "a dict of lists or a function of a key"
    check_type("candidates of tune", candidates, Mapping, what)
    return {name: [value] for name, value in options.items()} | dict(candidates)


def key_for(random_state: object, *inputs: object) -> jax.Array:
    """The key of one fit: never the same for two different inputs.

    Estimators are cloned, seed included, and fitted on other records, as by every cross-validation.
    One key for all of these would give them one noise, which cancels in the difference of two of
    them. So the key is a keyed hash of all that the fit depends on.

    Args:
      random_state: None takes fresh bits of the operating system. An integer, or a `RandomState` or
        `Generator`, which is advanced, gives a key that the same call gives again (*secret*).
      *inputs: Records, and parameters by name (*secret*): arrays to their last bit, containers,
        workloads and domains, functions with what they close over, other objects as `pickle` sees
        them. Equal numbers of two types, 1 and 1.0, give two keys.

    Returns:
      A typed key, scalar, of JAX's default generator (*secret*).

    Raises:
      ValueError: If `random_state` is none of these.
      TypeError: If a parameter holds what cannot be read, such as a generator or an open file.
    """
    fresh = secret_key()
    if random_state is None:
        return fresh
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        seed = hashlib.sha256(str(int(random_state)).encode()).digest()
    elif isinstance(random_state, np.random.RandomState | np.random.Generator):
        seed = random_state.bytes(32)
    else:
        raise ValueError(
            "random_state must be None, an integer, a RandomState or a Generator, got "
            f"{type(random_state).__name__}"
        )
    shape = jax.random.key_data(fresh).shape  # how many words a key has
    digest = hashlib.blake2b(key=seed, digest_size=4 * math.prod(shape))
    for value in inputs:
        named = value if isinstance(value, dict) else {"": value}
        for name, entry in named.items():
            digest.update(value_digest(name, strict=True) + _digest(name, entry))
        digest.update(value_digest(len(named), strict=True))
    words = np.frombuffer(digest.digest(), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words).reshape(shape))


def _digest(name: str, value: object) -> bytes:
    try:
        return value_digest(value, strict=True)
    except TypeError as error:
        raise TypeError(
            f"{name or 'records'} must be of arrays, numbers, text, functions and objects made of "
            f"these, by which the key of a fit is told from others, got {error}"
        ) from error

"""Private synthetic tables, as an estimator of scikit-learn."""

import re
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from dpjax.api import release
from dpjax.core import check_int
from dpjax.queries import Domain, Marginals
from dpjax.queries._domain import decode_into
from dpjax.queries.tables._frames import container_of
from dpjax.sklearn._public import PrivateEstimator, key_for


@dataclass(eq=False, repr=False)
class PrivateSynthesizer(PrivateEstimator):
    r"""Learns a table's distribution from private answers to a workload, and samples from it.

    `dpjax.release` with the interface of scikit-learn's density estimators.

    Guarantee: (`epsilon`, `delta`) for what a fit leaves: `guarantee_` is that of the method that
    ran. Public are all arguments of the constructor, first of all the domain, and under
    replace-one, the default, the number of records. Samples are post-processing: as many as wanted
    cost nothing more. `score` is not private.

    | input | effect |
    | --- | --- |
    | a value outside the domain | ValueError that names its column, before anything runs |
    | columns that the domain lacks | left out |

    Args:
      domain: A `dpjax.queries.Domain`, or what makes one: for each attribute, by name, a column
        such as `Numeric`, its labels or its number of codes. Required (*public*).
      epsilon: > 0; `math.inf` adds no noise (*public*).
      delta: In (0, 1); None: $n^{-3/2}$, at most 1e-5, of the public number n (*public*).
      workload: What is measured and should be right: `"all_1way"`, `"all_2way"`, ... for all
        marginal tables of so many attributes; the cliques of `Marginals`, a sequence of tuples of
        names; or a workload over the domain (*public*).
      method: As of `dpjax.release`.
      method_options: Other arguments of `dpjax.release`, by name: `target`, and, where a method is
        named, those of its `for_budget`.
      relation: `"replace_one"`, the default of `dpjax.release` too, or `"add_or_remove_one"` with
        `num_records` (*public*). The repr shows which holds.
      num_records: *Public* number, near that of the rows, by which counts are divided; None: that
        of the rows, which is public under replace-one only.
      random_state: As of `FairLogisticRegression` (*secret*).

    Attributes:
      release_: The `dpjax.Release`: answers, their error bars, log probabilities, method.
      domain_: The `Domain`.
      workload_: The workload.
      guarantee_: A `dpjax.Guarantee`.
      delta_: The delta asked for, or the default.
      epsilon_: `guarantee_.epsilon(delta_)`, at most `epsilon`.
      n_features_in_: Number of attributes.
      feature_names_in_: The domain's attributes, where `X` had named columns.

    Example:
      >>> import numpy as np, dpjax.sklearn
      >>> table = {"sex": np.repeat(["F", "M"], 500), "age": np.arange(1000) % 4}
      >>> model = dpjax.sklearn.PrivateSynthesizer(
      ...     {"sex": ["F", "M"], "age": 4}, workload="all_2way").fit(table)
      >>> synthetic = model.sample(10)
      >>> sorted(synthetic), set(synthetic["sex"].tolist()) <= {"F", "M"}, model.epsilon_ <= 1
      (['age', 'sex'], True, True)
    """

    domain: Domain | None = None
    _: KW_ONLY
    workload: Any = "all_3way"
    method: str = "auto"
    method_options: dict[str, Any] | None = None

    def fit(self, X: ArrayLike, y: object = None) -> "PrivateSynthesizer":
        """Measures the workload on a table, once, for the whole budget.

        Args:
          X: Codes `[n, A]`, columns by name, or a data frame (*secret*).
          y: Ignored; a label is one of the attributes.

        Returns:
          The estimator.

        Raises:
          TypeError: If `X` is no table, or domain or workload are of a wrong kind.
          ValueError: If there is no domain, a parameter is outside its bound, or a record outside
            the domain.
        """
        if self.domain is None:
            raise ValueError("domain is required: the values that each attribute may take, public")
        domain = self.domain if isinstance(self.domain, Domain) else Domain(self.domain)
        workload = _workload(self.workload, domain)
        codes = domain.encode(X)
        size, budget = self._public_size(len(codes), bounds=False)
        given: dict[str, Any] = {"method": self.method, "num_records": size, "progress": False}
        key, options = self._key(size, codes), self.method_options or {}
        self.release_ = release(workload, codes, budget, key=key, **given, **options)
        self.domain_, self.workload_ = domain, workload
        self._spent(self.release_.guarantee, budget)
        self.n_features_in_ = len(domain.attributes)
        self._size, self._container = size, container_of(X)
        self.__dict__.pop("feature_names_in_", None)
        if self._container is not None:
            self.feature_names_in_: np.ndarray = np.array(domain.attributes, object)
        return self

    def sample(
        self, n_samples: int | None = None, *, systematic: bool = False, random_state: object = None
    ) -> Any:
        """Synthetic records, in the kind of container that was fitted.

        Args:
          n_samples: How many; None: the public number of records.
          systematic: Whether each cell gets its expected number of records, rounded up or down;
            else records are independent.
          random_state: None, an integer, a `RandomState` or a `Generator`.

        Returns:
          Codes `[n, A]` int32; columns by name; or a data frame of the class that was fitted. They
          hold the domain's attributes, in its order, and, if columns have names, labels or values
          drawn within bins.

        Raises:
          TypeError: If `n_samples` is not an integer.
          ValueError: If `n_samples` < 1.
        """
        check_is_fitted(self)
        n_samples = self._size if n_samples is None else n_samples
        check_int("n_samples", n_samples, minimum=1)
        key = key_for(random_state, "sample", n_samples, systematic)
        codes = np.asarray(self.release_.sample(key, n_samples, systematic=systematic))
        if self._container is None:
            return codes
        return decode_into(self.domain_, self._container, codes, jax.random.fold_in(key, 1))

    def answers(self, workload: object = None) -> jax.Array:
        """Answers of the learned distribution: post-processing.

        Args:
          workload: As of the constructor; None for the one that was measured, whose answers are
            those released.

        Returns:
          Shares of the records, `[m]`.
        """
        check_is_fitted(self)
        if workload is None:
            return self.release_.answers
        return self.release_.answers_to(_workload(workload, self.domain_))

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Minus the largest error of the released answers on these records. **Not private**.

        Args:
          X: Records, as for `fit`.
          y: Ignored.

        Returns:
          A number in [-1, 0], higher is better.
        """
        check_is_fitted(self)
        true = self.workload_.answers_of_records(self.domain_.encode(X))
        return -float(jnp.max(jnp.abs(self.release_.answers - true)))

    def __sklearn_tags__(self) -> Any:
        """Tables of categories, numbers or text, rather than numbers of any kind."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags


def _workload(workload: object, domain: Domain) -> Any:
    """A workload over the domain, from what a user may write for one."""
    if isinstance(workload, str):
        found = re.fullmatch(r"all_(\d+)way", workload)
        if found is None:
            raise ValueError(f"workload must be like 'all_3way', got {workload!r}")
        return Marginals.all_kway(domain, int(found[1]))
    if isinstance(workload, list | tuple):
        return Marginals(domain, tuple(tuple(clique) for clique in workload))
    if getattr(workload, "domain", None) != domain:
        raise ValueError(
            "workload must be over the domain: 'all_3way', cliques, or a workload made with it, "
            f"got {type(workload).__name__}"
        )
    return workload

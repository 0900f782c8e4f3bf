"""Estimators with the interface of scikit-learn; `import dpjax.sklearn` asks for scikit-learn."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "dpjax.sklearn needs scikit-learn: install the extra, pip install 'dpjax[sklearn]'"
    ) from error

from dpjax.privacy._warnings import PrivacyWarning as PrivacyWarning
from dpjax.sklearn._fair_logistic_regression import FairLogisticRegression as FairLogisticRegression
from dpjax.sklearn._linear_models import LinearRegression as LinearRegression
from dpjax.sklearn._linear_models import LogisticRegression as LogisticRegression
from dpjax.sklearn._private_synthesizer import PrivateSynthesizer as PrivateSynthesizer

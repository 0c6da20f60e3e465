"""Estimators for scikit-learn whose samples are texts: features of a model, and classifiers as `smallworld
classify` makes them.

    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from smallworld.sklearn import Features, TextClassifier
    make_pipeline(Features("runs/quickstart"), LogisticRegression()).fit(texts, labels)
    TextClassifier(minutes=5).fit(texts, labels).predict_proba(texts)
"""

import os
import re
import tempfile
from pathlib import Path

import numpy
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ._library import Error, folder_of, is_missing, label_list, text_list
from .models import Model
from .program import Classifier, classify, write_table


class _OfTexts(BaseEstimator):
    """Tells scikit-learn that samples are texts: of versions before 1.6 by _more_tags."""

    def _more_tags(self):
        return {"X_types": ["string"], "no_validation": True}

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags


class Features(TransformerMixin, _OfTexts):
    """Texts to features, float32 (texts, pools x units). model: a smallworld.Model, a checkpoint or a run;
    state and pool as in Model.features."""

    def __init__(self, model, state="cell", pool="mean,last", device=None):
        self.model, self.state, self.pool, self.device = model, state, pool, device

    def fit(self, texts, labels=None):
        """Loads the model; nothing is learnt."""
        model = self.model
        if not isinstance(model, Model):
            path = Path(model) / "last.safetensors" if os.path.isdir(model) else model
            model = Model.load(path, device=self.device)
        self.model_, self.n_features_out_ = model, model.units * len(self.pool.split(","))
        return self

    def transform(self, texts):
        check_is_fitted(self, "model_")
        return self.model_.features(text_list(texts), state=self.state, pool=self.pool)


class _Saved:
    """A classifier's folder, which is removed with it, and which is pickled with its files."""

    def __init__(self, files=None):
        self.path = folder_of(self)
        for name, content in (files or {}).items():
            (Path(self.path) / name).write_bytes(content)

    def __reduce__(self):
        names = [path for path in Path(self.path).iterdir() if path.suffix == ".safetensors"]
        return _Saved, ({path.name: path.read_bytes() for path in names},)

    def __deepcopy__(self, memo):
        return self


class TextClassifier(ClassifierMixin, _OfTexts):
    """`smallworld classify` as an estimator: n-grams, a model's features, a model tuned on the labels, or
    n-grams joined with one of these, whichever errs least on held-out texts. minutes: for fit, about; 0 fits
    n-grams alone, as a CPU does by default. text: a file of more text of the same kind; model: a checkpoint or run whose features to
    use. class_weight: "balanced" has all classes count alike; verbose: progress on standard error. After fit, result_ is what classify says: a fifth of the texts is kept to measure errors on."""

    def __init__(self, minutes=None, text=None, model=None, device=None, class_weight=None, verbose=True):
        self.minutes, self.text, self.model, self.device = minutes, text, model, device
        self.class_weight, self.verbose = class_weight, verbose

    def fit(self, texts, labels):
        texts = text_list(texts)
        given = label_list(labels, len(texts))
        for row, label in enumerate(given):
            if is_missing(label):
                raise ValueError(f"labels: expected one for each text, got {label} for text {row}")
        labels = labels if isinstance(labels, numpy.ndarray) else numpy.asarray(given)
        classes = numpy.unique(labels)
        if len(classes) < 2:
            raise ValueError(f"labels: expected two classes or more, got {len(classes)}")
        saved = _Saved()
        with tempfile.TemporaryDirectory(prefix="smallworld-") as here:
            table = Path(here) / "texts.csv"
            write_table(table, texts, [f"class {k}" for k in numpy.searchsorted(classes, labels.ravel())])
            try:
                result = classify(table, saved.path, text=self.text, model=self.model, minutes=self.minutes,
                                  device=self.device, class_weight=self.class_weight, verbose=self.verbose)
            except Error as refused:
                said = re.sub(r"'?class (\d+)'?", lambda found: repr(classes[int(found[1])]), str(refused))
                raise Error(said.replace(f"{table}: ", "")) from None
        result["class_names"] = [str(classes[int(name.split()[1])]) for name in result["class_names"]]
        self.classes_, self._saved, self.result_ = classes, saved, result
        return self

    def predict_proba(self, texts):
        """float64 (texts, classes): the probability of each class of classes_."""
        check_is_fitted(self, "classes_")
        texts = text_list(texts)
        saved = Classifier(self._saved.path, self.device)
        numbers = [int(name.split()[1]) for name in saved.classes_]
        likely = numpy.zeros((len(texts), len(self.classes_)))
        likely[:, numbers] = saved.predict_proba(texts)
        return likely

    def predict(self, texts):
        likely = self.predict_proba(texts)
        return self.classes_[likely.argmax(1)]

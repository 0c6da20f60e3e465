"""Models that `smallworld train` made, and the block-sparse product, from Python.

    import smallworld
    model = smallworld.Model.load("runs/quickstart/last.safetensors")
    model.bits_per_character("A warm, bold film.")
    model.features(["A warm, bold film.", "A flat, dull film."])   # NumPy, (2, 2 x units)
    smallworld.classify("reviews.csv", "reviews", minutes=10)["both_error"]
    smallworld.Classifier.load("reviews").predict(["A warm, bold film."])

Layers for PyTorch are in smallworld.torch, which alone needs it, and estimators for scikit-learn in smallworld.sklearn. All else needs NumPy and libsmallworld:
beside this package, in the prefix it was installed to, where the system looks for libraries, or at
$SMALLWORLD_LIBRARY. train, classify, Classifier and Probe.fit run the program `smallworld`, which is looked for in the same
places, on the PATH, and at $SMALLWORLD_PROGRAM.
"""

from ._library import Error, version
from .models import Model
from .products import Conv, Pattern, bsmm
from .program import Classifier, Probe, classify, program, train

__all__ = ["Classifier", "Conv", "Error", "Model", "Pattern", "Probe", "bsmm", "classify", "program", "train", "version"]
__version__ = version()

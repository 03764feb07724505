"""Every family of models, with a trained network each: how it is built, trained, measured, and read as a density."""

from nfk.lab.families.autoregressive import Autoregressive, PixelTransformer
from nfk.lab.families.classifier import Classifier, PhotoClassifier
from nfk.lab.families.diffusion import Denoiser
from nfk.lab.families.energy import Energy, EnergyOverSamples
from nfk.lab.families.family import Family
from nfk.lab.families.flow import Flow
from nfk.lab.families.gan import DigitGAN, PhotoGAN
from nfk.lab.families.language import Language
from nfk.lab.families.vae import VAE, HierarchicalVAE, ImportanceWeightedVAE

FAMILIES: tuple[Family, ...] = (
    Classifier(), PhotoClassifier(), DigitGAN(), PhotoGAN(), VAE(), ImportanceWeightedVAE(), HierarchicalVAE(), Flow(),
    Autoregressive(), PixelTransformer(), Energy(), EnergyOverSamples(), Denoiser(), Language("subjectivity"),
    Language("polarity"),
)  # fmt: skip

__all__ = ["FAMILIES", "Family"]

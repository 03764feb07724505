"""Every family of models, with a trained network each: how it is built, trained, measured, and read as a density."""

from reproduction.families.autoregressive import Autoregressive, PixelTransformer
from reproduction.families.classifier import Classifier, PhotoClassifier
from reproduction.families.diffusion import Denoiser
from reproduction.families.energy import Energy, EnergyOverSamples
from reproduction.families.family import Family
from reproduction.families.flow import Flow
from reproduction.families.gan import DigitGAN, PhotoGAN
from reproduction.families.language import Language
from reproduction.families.vae import VAE, HierarchicalVAE, ImportanceWeightedVAE

FAMILIES: tuple[Family, ...] = (
    Classifier(), PhotoClassifier(), DigitGAN(), PhotoGAN(), VAE(), ImportanceWeightedVAE(), HierarchicalVAE(), Flow(),
    Autoregressive(), PixelTransformer(), Energy(), EnergyOverSamples(), Denoiser(), Language("subjectivity"),
    Language("polarity"),
)  # fmt: skip

__all__ = ["FAMILIES", "Family"]

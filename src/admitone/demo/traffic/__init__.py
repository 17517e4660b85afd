"""Traffic whose right decisions and exact counts are known; no part of the product is used."""

from admitone.demo.traffic.generate import Delivery, GeneratorOptions, generate
from admitone.demo.traffic.truth import Truth, TruthRecorder

__all__ = ["Delivery", "GeneratorOptions", "Truth", "TruthRecorder", "generate"]

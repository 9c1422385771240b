"""What lasts: retention horizons, plans and placement. Pure mathematics; knows no storage."""

from holdover.retention.plan import RetentionPlan
from holdover.retention.quality import Element, OperatingPoint, QualityGate, RefreshPolicy

__all__ = ["Element", "OperatingPoint", "QualityGate", "RefreshPolicy", "RetentionPlan"]

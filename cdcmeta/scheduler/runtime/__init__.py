"""The system around the scheduler: captures as processes, and changefeeds as records of a store.

* `Capture`, a process that replicates tables: registers, takes part in the election, and schedules
  while it leads.
* `Changefeeds`, what operators do: create, pause, resume, move, drain, and look.
"""

from cdcmeta.scheduler.runtime.capture import Capture
from cdcmeta.scheduler.runtime.changefeed_records import Changefeed, Placement
from cdcmeta.scheduler.runtime.changefeeds import Changefeeds
from cdcmeta.scheduler.runtime.reports import CaptureStatus, Scheduled

__all__ = ["Capture", "CaptureStatus", "Changefeed", "Changefeeds", "Placement", "Scheduled"]

"""Whole live runs without sockets: peers that follow the protocol, and schedules of messages and deaths."""

from psbench.testing.live.campaign import LiveCampaign, run_live_campaign
from psbench.testing.live.world import World

__all__ = ["LiveCampaign", "World", "run_live_campaign"]

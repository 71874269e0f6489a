"""Whole live runs without sockets: peers that follow the protocol, and schedules of messages and deaths."""

from tests.live_runs.campaign import LiveCampaign, run_live_campaign
from tests.live_runs.world import World

__all__ = ["LiveCampaign", "World", "run_live_campaign"]

"""Links with queues, and the congestion windows of TCP senders: the network beside the fluid one.

``sharing.Queueing`` is the rule by which flows share such links. It advances in time steps
(``time_steps.py``), each by a plan (``step_plan.py``) of what links, losses and senders do in it.
"""

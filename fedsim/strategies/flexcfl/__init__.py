"""FlexCFL and its static form FedGroup: groups by the direction of the devices' first updates."""

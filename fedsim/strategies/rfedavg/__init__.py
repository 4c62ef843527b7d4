"""RFedAvg: one model from clusters of like gradients, weighted so that the classes count alike."""

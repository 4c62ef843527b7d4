"""A small network in torch, trained on points around three centres."""

import torch
from torch import nn

CLASSES, FEATURES = 3, 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, CLASSES)
        )

    def forward(self, x):
        return self.layers(x)


def load_data(partition, partitions):
    draw = torch.Generator().manual_seed(1000 * partitions + partition)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0)) * 2
    y = torch.randint(0, CLASSES, (24 + 4 * (partition % 3),), generator=draw)
    return torch.utils.data.TensorDataset(
        centres[y] + torch.randn(len(y), FEATURES, generator=draw), y
    )


def train(net, data, epochs, lr):
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    optimiser = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for x, y in loader:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net, data):
    net.eval()
    x, y = data.tensors
    with torch.no_grad():
        outputs = net(x)
    return nn.functional.cross_entropy(outputs, y).item(), (
        outputs.argmax(1) == y
    ).float().mean().item()

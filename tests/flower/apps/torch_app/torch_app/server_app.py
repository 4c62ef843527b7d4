import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from torch_app.task import Net, load_data, test

app = ServerApp()


def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_data(99, 100))
    return MetricRecord({"accuracy": accuracy, "loss": loss})


@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord(Net().state_dict())
    result = FedAvg(fraction_train=context.run_config["fraction-train"]).start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
        num_rounds=context.run_config["num-server-rounds"],
        timeout=context.run_config["timeout"],
        evaluate_fn=central,
    )
    torch.nn.Module.load_state_dict(Net(), result.arrays.to_torch_state_dict())

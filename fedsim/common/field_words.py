"""Words of papers and other frameworks, with the scenario keys and kinds of the same meaning.

The message about an unknown key or kind of a scenario has a hint from this table, and not the name
with the nearest spelling, to help users of Flower, APPFL, FedScale, LEAF, NVFlare or PFLlib.
"""

_COHORT = "strategy.clients_per_round, a number of clients"
_DEVICES = "population.devices"
_EPOCHS = "strategy.local_epochs"
_ROUNDS = "stop.rounds"
_RATES = "network.device.up and network.device.down"
_TRACE = "network.device.down, as { kind = 'trace', file = '...', rate = 'Mbit/s' }"
_SPEED = "population.speed, in samples/s"
_GROUPS = "strategy.groups, of the strategies that cluster"
_SERVER = "strategy.server, as { kind = 'adam', lr = 0.01 }"
_TORCH = "training, as { kind = 'torch', optimizer = 'Adam' }"
_PRIVATE = "strategy.aggregation, as { kind = 'private', noise = 1.0, clip = 1.0 }"
_PARTITION = "data.partition, as { kind = 'dirichlet', alpha = 0.5 }"
_CODEC = "messages.up, as { kind = 'top-k', share = 0.01 }"
_STEPS = "population.local.steps"
_TESTS = "evaluation.every: the server tests models, on all test samples"
_WORKERS = "--workers, given with a run and not in its scenario"
_FOLDER = "--out, given with a run and not in its scenario"
_MODULE = "model, as { kind = 'module', factory = 'package.module:function' }"
_SIZED = f"{_MODULE}; or without learning as {{ kind = 'size', bytes = ... }}, of "
_PICTURES = (
    "'dataset', as { kind = 'dataset', factory = 'package.module:function' }, a torch Dataset of "
    "yours that reads the folder"
)
_COLUMN = (
    "of each quantity, as population.speed, network.device.up and network.device.down, as "
    "{ file = ..., column = ..., unit = ... }"
)

KEYS = {
    # training of a client
    "epochs": _EPOCHS,
    "num_epochs": _EPOCHS,
    "n_epochs": _EPOCHS,
    "local_epoch": _EPOCHS,
    "local_epochs": _EPOCHS,
    "client_epochs": _EPOCHS,
    "local_ep": _EPOCHS,
    "num_local_epochs": _EPOCHS,
    "aggregation_epochs": _EPOCHS,
    "num_local_steps": _STEPS,
    "local_steps": _STEPS,
    "local_iterations": _STEPS,
    "learning_rate": "training.lr",
    "client_lr": "training.lr",
    "local_learning_rate": "training.lr",
    "step_size": "training.lr",
    "lr": "training.lr",
    "eta_l": "training.lr",
    "learning_rate_decay": "training.lr_decay",
    "learning_rate_decay_gamma": "training.lr_decay",
    "decay_factor": "training.lr_decay",
    "batch": "training.batch_size",
    "batch_size": "training.batch_size",
    "local_bs": "training.batch_size",
    "local_batch_size": "training.batch_size",
    "minibatch": "training.batch_size",
    "train_batch_size": "training.batch_size",
    "grad_clip": "training.clip",
    "max_grad_norm": "training.clip",
    "clip_norm": "training.clip",
    "clip_grad": "training.clip",
    "clip_value": "training.clip",
    "wd": "training.weight_decay",
    "optimizer": _TORCH,
    "optim": _TORCH,
    "optim_args": _TORCH,
    "optimiser": _TORCH,
    "scheduler": "training.schedule, of training.kind = 'torch'",
    "schedule": "training.schedule, of training.kind = 'torch'",
    "device": "training.device",
    "gpu": "training.device, as 'cuda'",
    "cuda": "training.device, as 'cuda'",
    # cohort and rounds
    "fraction_fit": _COHORT,
    "fraction_train": _COHORT,
    "random_join_ratio": _COHORT,
    "jr": _COHORT,
    "fit_fraction": _COHORT,
    "client_fraction": _COHORT,
    "fraction": _COHORT,
    "frac": _COHORT,
    "join_ratio": _COHORT,
    "sample_rate": _COHORT,
    "participation_rate": _COHORT,
    "participation": _COHORT,
    "cohort_size": _COHORT,
    "cohort": _COHORT,
    "client_num_per_round": _COHORT,
    "clients_in_round": _COHORT,
    "num_selected": _COHORT,
    "num_participants": _COHORT,
    "min_fit_clients": _COHORT,
    "min_train_nodes": _COHORT,
    "min_available_clients": "strategy.min_available",
    "min_available_nodes": "strategy.min_available",
    "min_clients": "strategy.min_available",
    "min_sites": "strategy.min_available",
    "auto_break": "stop.patience, a number of rounds",
    "min_evaluate_clients": _TESTS,
    "min_evaluate_nodes": _TESTS,
    "early_stopping": "stop.patience, a number of rounds",
    "early_stop": "stop.patience, a number of rounds",
    "save_best": "evaluation.keep_best",
    "save_best_only": "evaluation.keep_best",
    "with_replacement": "strategy.selection, as { kind = 'random', replacement = true }",
    "unseen_clients": "population.tested_only",
    "num_new_clients": "population.tested_only",
    "new_clients": "population.tested_only, or population.arrivals for those that join later",
    "num_clients": _DEVICES,
    "n_clients": _DEVICES,
    "num_users": _DEVICES,
    "num_devices": _DEVICES,
    "n_devices": _DEVICES,
    "total_clients": _DEVICES,
    "client_num_in_total": _DEVICES,
    "num_supernodes": _DEVICES,
    "num_partitions": _DEVICES,
    "num_sites": _DEVICES,
    "nc": _DEVICES,
    "clients": _DEVICES,
    "num_rounds": _ROUNDS,
    "n_rounds": _ROUNDS,
    "rounds": _ROUNDS,
    "global_rounds": _ROUNDS,
    "global_epochs": _ROUNDS,
    "comm_round": _ROUNDS,
    "comm_rounds": _ROUNDS,
    "communication_rounds": _ROUNDS,
    "num_server_rounds": _ROUNDS,
    "num_global_epochs": _ROUNDS,
    "gr": _ROUNDS,
    "max_time": "stop.simulated_time",
    "time_budget": "stop.simulated_time",
    "target_accuracy": "stop.accuracy",
    "timeout": "strategy.deadline",
    "round_timeout": "strategy.deadline",
    "train_timeout": "strategy.deadline",
    "time_threshold": "strategy.deadline",
    "time_threthold": "strategy.deadline",
    "wait_time_after_min_received": "strategy.over_selection, or strategy.deadline",
    "overcommitment": "strategy.over_selection",
    "over_provision": "strategy.over_selection",
    "eval_every": "evaluation.every",
    "test_every": "evaluation.every",
    "eval_interval": "evaluation.every",
    "eval_gap": "evaluation.every",
    "fraction_evaluate": _TESTS,
    "key_metric": "stop.monitor",
    # strategies
    "algorithm": "strategy.kind",
    "method": "strategy.kind",
    "aggregator": "strategy.aggregation, or strategy.kind",
    "mu": "strategy.mu, of fedprox, fednova, fedat and moon",
    "proximal_mu": "strategy.mu, of fedprox",
    "proximal": "strategy.mu, of fedprox",
    "server_lr": _SERVER,
    "server_learning_rate": _SERVER,
    "server_optimizer": _SERVER,
    "server_momentum": _SERVER,
    "beta_1": _SERVER,
    "beta_2": _SERVER,
    "yogi_eta": "strategy.server, as { kind = 'yogi', lr = 0.01 }",
    "gradient_policy": "strategy.kind, or strategy.server, as { kind = 'yogi', lr = 0.01 }",
    "q_param": "strategy.q, of q-fedavg",
    "qffl_learning_rate": "strategy.lipschitz, of q-fedavg, which is 1 / learning rate",
    "min_local_steps": "strategy.min_steps, of fedcompass",
    "max_local_steps": "strategy.max_steps, of fedcompass",
    "latest_time_factor": "strategy.latest_factor, of fedcompass",
    "fedproxloss_mu": "strategy.mu, of fedprox",
    "staleness_fn": "strategy.exponent, of fedasync",
    "sample_mode": "strategy.selection",
    "client_selector": "strategy.selection",
    "client_manager": "strategy.selection",
    "num_nodes_to_keep": "strategy.aggregation, as { kind = 'multi-krum' }",
    "weighted_by_key": "strategy.aggregation, as 'weighted' or 'mean'",
    "client_weights_mode": "strategy.aggregation, as 'weighted' or 'mean'",
    "eta_g": _SERVER,
    "buffer_size": "strategy.buffer, of fedbuff",
    "max_staleness": "strategy.most_staleness, of fedbuff",
    "num_clusters": _GROUPS,
    "n_clusters": _GROUPS,
    "clusters": _GROUPS,
    "num_groups": _GROUPS,
    "quantization": "messages.up, as { kind = 'qsgd', levels = 16 }",
    "compression": _CODEC,
    "compressor": _CODEC,
    "enable_compression": _CODEC,
    "lossy_compressor": _CODEC,
    "sparsification": _CODEC,
    "noise_multiplier": _PRIVATE,
    "clipping_norm": _PRIVATE,
    "use_dp": _PRIVATE,
    "dp": _PRIVATE,
    "epsilon": _PRIVATE,
    "differential_privacy": _PRIVATE,
    "secagg": "strategy.secure_aggregation",
    # data sets and partitions
    "path": "data.source, as { kind = 'npz', path = ... }",
    "folder": f"data.source, as {_PICTURES}",
    "csv": _COLUMN,
    "file": _COLUMN,
    "memory": "population.kinds, which has the memory of each kind of device",
    "ram": "population.kinds, which has the memory of each kind of device",
    "dataset": "data.source",
    "dataset_name": "data.source",
    "data_set": "data.source",
    "data_map_file": "data.partition, as 'by-user' or 'file'",
    "partition_by": "data.partition, as 'by-user'",
    "min_partition_size": _PARTITION,
    "partitioner": _PARTITION,
    "non_iid": _PARTITION,
    "noniid": _PARTITION,
    "iid": "data.partition, as 'iid'",
    "dirichlet": _PARTITION,
    "dirichlet_alpha": _PARTITION,
    "dir_alpha": _PARTITION,
    "concept_drift": "drift",
    "random_seed": "seed",
    "random_state": "seed",
    "manual_seed": "seed",
    # devices and network
    "bandwidth": f"{_RATES}, a rate or {_TRACE}",
    "throughput": f"{_RATES}, a rate or {_TRACE}",
    "capacity_trace": _TRACE,
    "bandwidth_trace": _TRACE,
    "throughput_trace": _TRACE,
    "network_trace": _TRACE,
    "trace": _TRACE,
    "traces": _TRACE,
    "trace_file": _TRACE,
    "mahimahi": _TRACE,
    "packet_loss": "network.device.loss",
    "loss_rate": "network.device.loss",
    "upload_speed": "network.device.up",
    "download_speed": "network.device.down",
    "uplink": "network.device.up",
    "downlink": "network.device.down",
    "upload": "network.device.up",
    "download": "network.device.down",
    "delay": "network.device.latency",
    "rtt": "network.device.latency, which is half of a round trip",
    "compute": _SPEED,
    "compute_speed": _SPEED,
    "dropout": "population.availability",
    "dropout_rate": "population.availability",
    "client_drop_rate": "population.availability",
    "train_slow_rate": "population.stragglers",
    "send_slow_rate": _RATES,
    "device_conf_file": f"{_SPEED}, and {_RATES}, from that file",
    "device_avail_file": "population.availability, as 'fedscale'",
    "battery": "energy.battery",
    "byzantine": "malicious",
    "attackers": "malicious.share",
    "num_malicious": "malicious.devices",
    "num_malicious_nodes": "malicious.devices",
    "num_byzantine": "malicious.devices",
    # options of the command line
    "workers": _WORKERS,
    "num_workers": _WORKERS,
    "num_cpus": _WORKERS,
    "client_resources": _WORKERS,
    "threads": _WORKERS,
    "num_gpus": _WORKERS,
    "backend": "--executor, given with a run and not in its scenario",
    "output_dir": _FOLDER,
    "log_dir": _FOLDER,
    "save_dir": _FOLDER,
    "workspace": _FOLDER,
    "ckpt_dir": _FOLDER,
}
"""Key of another framework -> the scenario key for it."""

KINDS = {
    # models
    "resnet": f"'resnet18-gn', or {_MODULE}",
    "resnet18": f"'resnet18-gn', or {_SIZED}46.8 MB",
    "resnet50": f"{_SIZED}102 MB",
    "mobilenet": _MODULE,
    "mobilenet_v2": f"{_SIZED}14 MB",
    "vgg": _MODULE,
    "vgg16": f"{_SIZED}553 MB",
    "vit": _MODULE,
    "cnn": "'mnist-cnn', 'femnist-cnn', 'emnist-cnn', 'leaf-cnn', 'fashion-cnn' or 'cnn5'",
    "lenet": "'mnist-cnn'",
    "lr": "'logistic'",
    "mclr": "'logistic'",
    "softmax": "'logistic'",
    "lstm": "'char-lstm'",
    "rnn": "'char-lstm'",
    "gpt": "'transformer'",
    "gpt2": "'transformer'",
    "bert": "'transformer'",
    # trainers, server optimisers and strategies
    "adam": _TORCH,
    "adamw": _TORCH,
    "rmsprop": _TORCH,
    "fedadam": _SERVER,
    "fedyogi": "strategy.server, as { kind = 'yogi', lr = 0.01 }",
    "fedadagrad": "strategy.server, as { kind = 'adagrad', lr = 0.01 }",
    "fedopt": _SERVER,
    "fedavgm": "strategy.server, as { kind = 'sgd', momentum = 0.9 }",
    "qfedavg": "'q-fedavg'",
    "qffl": "'q-fedavg'",
    "fedprox_loss": "'fedprox'",
    "fedcompassnova": "'fedcompass'",
    "fedasynchronous": "'fedasync'",
    "serverfedasynchronous": "'fedasync'",
    "scatterandgather": "'fedavg'",
    "fedsgd": "'fedavg' with training.batch_size of all samples and local_epochs = 1",
    "perfedavg": "'fedper' or 'fedrep', which keep layers on each device",
    # data sources and partitions
    "shakespeare": "'text', or 'tff' and 'leaf', which read files of all speakers",
    "femnist": "'tff' or 'leaf' by writer, or 'emnist' with data.partition = 'femnist'",
    "stackoverflow": "'tff'",
    "leaf": "data.source = 'leaf'",
    "folder": _PICTURES,
    "image_folder": _PICTURES,
    "images": _PICTURES,
    "directory": _PICTURES,
    "csv": "data.source = 'csv'",
    "parquet": "data.source = 'parquet'",
    "torchvision": "'dataset', as { kind = 'dataset', factory = 'module:function' }",
    "cifar100": "'huggingface' or 'dataset', which read files of your own",
    "dir": "'dirichlet'",
    "lda": "'dirichlet'",
    "noniid": "'dirichlet' or 'shards'",
    "non_iid": "'dirichlet' or 'shards'",
    "pathological": "'shards'",
    "natural": "'by-user', or 'file'",
    # networks, codecs, attacks
    "bandwidth": "'trace'",
    "throughput": "'trace'",
    "mahimahi": "'trace'",
    "lumos5g": "'trace'",
    "fcc": "'trace'",
    "lte": "'trace'",
    "log": "'trace'",
    "wifi": "'star', with the links in network.device",
    "hierarchical": "'tree'",
    "p2p": "'graph'",
    "quantization": "'qsgd', 'int8' or 'float16'",
    "topk": "'top-k'",
    "terngrad": "'qsgd'",
    "signsgd": "'sign'",
    "label_flipping": "'label-flip'",
    "trimmed": "'trimmed-mean'",
    "trimmed_mean": "'trimmed-mean'",
    "dp": "'private'",
}
"""Kind of another framework -> the scenario kind or key for it."""


def hint_for_key(word: str) -> str:
    """Return a hint at fedsim's key for a user who wrote the key's name in another framework.

    Args:
        word: the unknown key.

    Returns:
        The hint; empty if the word is a key of no framework that fedsim knows.

    Example:
        >>> hint_for_key("fraction_fit")
        " (in fedsim 'fraction_fit' is strategy.clients_per_round, a number of clients)"
    """
    return _hint(word, KEYS)


def hint_for_kind(word: str) -> str:
    """Return a hint at fedsim's kind for a user who wrote the kind's name in another framework.

    Args:
        word: the unknown kind.

    Returns:
        The hint; empty if the word is a kind of no framework that fedsim knows.

    Example:
        >>> hint_for_kind("lstm")
        " (in fedsim 'lstm' is 'char-lstm')"
    """
    return _hint(word, KINDS)


def _hint(word: str, meanings: dict[str, str]) -> str:
    name = word.lower().replace("-", "_")
    # the user may also write "batchsize" for "batch_size"
    by_joined_name = {key.replace("_", ""): meaning for key, meaning in meanings.items()}
    meaning = meanings.get(name, by_joined_name.get(name.replace("_", "")))
    return "" if meaning is None else f" (in fedsim {word!r} is {meaning})"

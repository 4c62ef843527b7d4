"""Words of other frameworks are answered by fedsim's names, which exist."""

import re
from typing import Any

import pytest

import fedsim
from fedsim.common.errors import ScenarioError
from fedsim.common.field_words import KEYS, KINDS, hint_for_key, hint_for_kind
from fedsim.common.kind_field import specs_of
from fedsim.lab.catalogue import _REGISTRIES, _every_path
from fedsim.running.scenario import Scenario
from fedsim.world.network.spec import DeviceLinks

LEAST = {
    "data": {"source": "digits"},
    "network": {"kind": "star"},
    "model": {"kind": "mlp"},
    "training": {"kind": "sgd"},
    "population": {"devices": 3},
    "strategy": {"kind": "fedavg"},
    "stop": {"rounds": 1},
}
TRACE_VALUES = "file = '...', rate = 'Mbit/s'"  # what a user fills in
QUOTED = re.compile(r"'([^']*)'")
DOTTED = re.compile(r"\b[a-z]+(?:\.[a-z_]+)+")


def refusals(word: str, value: Any) -> list[str]:
    """Messages for the key ``word`` beside the tables, and in tables that do not know it."""
    messages = []
    for table in ("", "strategy", "stop"):
        sections: dict[str, Any] = {name: dict(keys) for name, keys in LEAST.items()}
        place = sections[table] if table else sections
        if word in place or (not table and word in Scenario.model_fields):
            continue
        place[word] = value
        try:
            fedsim.Scenario(**sections)
        except ScenarioError as error:
            messages.append(str(error))
    return messages


@pytest.mark.parametrize("word", KEYS)
def test_a_key_of_other_frameworks_is_answered_by_the_name_here(word: str) -> None:
    # an error names Python's arguments in place of the command line's options
    hint = str(ScenarioError(f"(in fedsim {word!r} is {KEYS[word]})"))
    answered = [message for message in refusals(word, "cuda") if hint in message]
    assert len(answered) >= 2


@pytest.mark.parametrize("word", KINDS)
def test_a_kind_of_other_frameworks_is_answered_by_the_name_here(word: str) -> None:
    hint = f"(in fedsim {word!r} is {KINDS[word]})"
    families = ("models", "strategies", "trainers", "data sources", "partitions", "codecs")
    refused = 0
    for family in families:
        registry = _REGISTRIES[family]
        if word in registry.kinds:
            continue
        with pytest.raises(ScenarioError) as caught:
            registry.class_of(word)
        refused += hint in str(caught.value)
    assert refused >= len(families) - 1


def test_the_names_in_the_answers_exist() -> None:
    paths = {path for path, _, _ in _every_path()} | {f"{t}.kind" for t in LEAST}
    kinds = {kind for registry in _REGISTRIES.values() for kind in registry.kinds}
    kinds |= {"cuda", "Adam", "module:function", "package.module:function"}
    kinds |= {*specs_of(DeviceLinks.model_fields["down"])}
    for meaning in [*KEYS.values(), *KINDS.values()]:
        sentence = meaning.replace("package.module:function", "").replace(TRACE_VALUES, "")
        for path in DOTTED.findall(sentence):
            assert path in paths, meaning
        for kind in QUOTED.findall(sentence):
            assert not kind or kind in kinds, meaning


FRAMEWORKS = {
    "Flower": """
        fraction-fit=clients_per_round fraction_train=clients_per_round fraction-evaluate=evaluation
        min_fit_clients=clients_per_round min_train_nodes=clients_per_round
        min_available_clients=min_available min_available_nodes=min_available
        min_evaluate_clients=evaluation num-server-rounds=stop.rounds local-epochs=local_epochs
        learning-rate=training.lr batch-size=training.batch_size num-supernodes=population.devices
        num_partitions=population.devices partition_by=by-user proximal-mu=strategy.mu
        server_learning_rate=strategy.server server_momentum=strategy.server eta_l=training.lr
        beta_1=strategy.server q_param=strategy.q qffl_learning_rate=strategy.lipschitz
        noise_multiplier=private clipping_norm=private num_malicious_nodes=malicious.devices
        num_nodes_to_keep=multi-krum weighted_by_key=strategy.aggregation round_timeout=deadline
        client_resources=--workers client_manager=strategy.selection dirichlet_alpha=data.partition
        """,
    "APPFL": """
        num_global_epochs=stop.rounds num_local_epochs=local_epochs num_local_steps=local.steps
        num_clients=population.devices optim=training optim_args=training
        train_batch_size=training.batch_size aggregator=strategy.aggregation
        client_weights_mode=strategy.aggregation use_dp=private epsilon=private
        clip_grad=training.clip clip_value=training.clip min_local_steps=min_steps
        max_local_steps=max_steps latest_time_factor=latest_factor staleness_fn=exponent
        enable_compression=messages.up lossy_compressor=messages.up output_dir=--out
        """,
    "FedScale": """
        num_participants=clients_per_round rounds=stop.rounds local_steps=local.steps
        overcommitment=over_selection sample_mode=strategy.selection gradient_policy=strategy.server
        yogi_eta=yogi data_set=data.source data_map_file=data.partition
        device_conf_file=population.speed device_avail_file=population.availability
        eval_interval=evaluation.every decay_factor=lr_decay learning_rate=training.lr
        log_dir=--out backend=--executor dataset=data.source client_selector=strategy.selection
        """,
    "PFLlib": """
        global_rounds=stop.rounds gr=stop.rounds local_learning_rate=training.lr
        join_ratio=clients_per_round jr=clients_per_round random_join_ratio=clients_per_round
        num_clients=population.devices nc=population.devices client_drop_rate=availability
        train_slow_rate=stragglers send_slow_rate=network.device.up time_threthold=deadline
        learning_rate_decay=lr_decay learning_rate_decay_gamma=lr_decay eval_gap=evaluation.every
        num_new_clients=tested_only auto_break=stop.patience algorithm=strategy.kind mu=strategy.mu
        num_clusters=strategy.groups
        """,
    "NVFlare": """
        min_clients=min_available min_sites=min_available num_rounds=stop.rounds
        aggregation_epochs=local_epochs train_timeout=deadline
        wait_time_after_min_received=deadline key_metric=stop.monitor fedproxloss_mu=strategy.mu
        n_clients=population.devices num_sites=population.devices threads=--workers gpu=cuda
        workspace=--out save_dir=--out optimizer=training random_seed=seed
        """,
}
"""Framework -> keys as its documentation spells them, each with a part of the name here."""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_keys_as_a_framework_spells_them_lead_to_the_right_name(framework: str) -> None:
    wrong = {}
    for pair in FRAMEWORKS[framework].split():
        word, _, name = pair.partition("=")
        hint = str(ScenarioError(hint_for_key(word)))
        if name not in hint and str(ScenarioError(name)) not in hint:
            wrong[word] = hint
    assert not wrong


def test_a_hundred_words_of_frameworks_are_known() -> None:
    words = {pair.partition("=")[0] for text in FRAMEWORKS.values() for pair in text.split()}
    assert len(words) >= 95
    assert hint_for_kind("QFedAvg") == " (in fedsim 'QFedAvg' is 'q-fedavg')"

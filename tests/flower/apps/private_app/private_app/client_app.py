from flwr.client.mod import fixedclipping_mod, secaggplus_mod
from flwr.clientapp import ClientApp

from tests.flower.apps.legacy_app.legacy_app.client_app import client_fn

app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod, fixedclipping_mod])

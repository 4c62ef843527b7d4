"""Addresses of the strategies' papers, for the strategies' pages."""

_ARXIV = {
    "cfl": "1910.01991",
    "d-psgd": "1705.09056",
    "diloco": "2311.08105",
    "ditto": "2012.04221",
    "epidemic": "2310.01972",
    "fedasync": "1903.03934",
    "fedat": "2010.05958",
    "fedavg": "1602.05629",
    "fedbn": "2102.07623",
    "fedbuff": "2106.06639",
    "feddr": "2103.03452",
    "feddyn": "2111.04263",
    "fedgroup": "2010.06870",
    "fednova": "2007.07481",
    "fedper": "1912.00818",
    "fedprox": "1812.06127",
    "fedrep": "2102.07078",
    "fesem": "2005.01026",
    "fesem-mig": "2005.01026",
    "fl-hc": "2004.11791",
    "flexcfl": "2108.09749",
    "flora": "2409.05976",
    "fpfc": "2211.04218",
    "gossip": "1710.06952",
    "heterofl": "2010.01264",
    "hetlora": "2401.06432",
    "hierfavg": "1905.06641",
    "hypcluster": "2002.10619",
    "ifca": "2006.04088",
    "ifca-mig": "2006.04088",
    "lcfl": "2407.09360",
    "local-sgd": "1805.09767",
    "moon": "2103.16257",
    "pfedme": "2006.08848",
    "refl": "2111.01108",
    "scaffold": "1910.06378",
    "tifl": "2001.09249",
}
_PAGES = {
    "ca2fl": ("https://www.iclr.cc/virtual/2024/poster/19456", "ICLR 2024"),
    "cata-fed": ("https://doi.org/10.3390/s22187061", "Sensors 22(18), 7061"),
}
"""Strategies whose papers are not on arXiv, or not surely -> a publisher's page, and its name."""
WITHOUT_LINK = {
    "flower": "no paper's strategy: it runs an app",
    "local": "no paper: devices train alone",
    "rfedavg": "no page of the paper was found; authors and title are on the page",
}
"""Strategies whose pages have no link -> the reason."""


def paper_link(kind: str) -> str:
    """Return a line with the link to a strategy's paper; empty if its address is not known."""
    if kind in _PAGES:
        address, name = _PAGES[kind]
        return f"[The paper]({address}) ({name})"
    if kind in _ARXIV:
        return f"[The paper](https://arxiv.org/abs/{_ARXIV[kind]}) (arXiv:{_ARXIV[kind]})"
    return ""

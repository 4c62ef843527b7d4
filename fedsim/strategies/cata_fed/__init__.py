"""CATA-Fed (Jeong and Kim, 2022): the server's rounds, its clusters and its choice of clients, and the devices' side."""

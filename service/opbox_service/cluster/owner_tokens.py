"""The tokens file that all nodes of a cluster have: the one of OPBOX_TOKENS_FILE, or one made from other settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..accounting.accounts import Accounts
from ..api.token_files import parse_tokens, read_token
from ..owner_terms import DEFAULT_OWNER, SCOPES, Token
from ..settings import Settings
from ..token_hashes import new_token, sha256_of
from .documents import QUOTAS, OwnerQuotas
from .machine_record import write_private
from .quotas import UNLIMITED

__all__ = ["quotas_of", "tokens_file", "usual_quotas"]


def tokens_file(settings: Settings, folder: Path) -> tuple[Path, str]:
    """Return the path of the cluster's tokens file, and the token that was made if the settings know nobody.

    Args:
        settings: of the machine that starts the cluster.
        folder: for a file made from the settings' tokens, which has hashes alone.
    """
    if settings.tokens_file is not None:
        return settings.tokens_file.absolute(), ""
    tokens = list(settings.tokens)
    whole = settings.token.get_secret_value() if settings.token is not None else ""
    if settings.token_file is not None:
        whole = read_token(settings.token_file)
    fresh = "" if whole or tokens else new_token()
    if whole or fresh:
        tokens.append(Token(name=DEFAULT_OWNER, sha256=sha256_of(whole or fresh), scopes=SCOPES))
    path = folder / "tokens.json"
    rows = [token.hashed().model_dump(mode="json", exclude_none=True) for token in tokens]
    write_private(path, json.dumps({"tokens": [{**row, "scopes": sorted(row["scopes"])} for row in rows]}, indent=1))
    return path, fresh


def usual_quotas(settings: Settings) -> Mapping[str, float]:
    """Return what owners without terms of their own have over all nodes, by quota: what they have on one server.

    Example:
        >>> usual_quotas(Settings(max_sessions=4))
        {'sessions': 4.0}
    """
    account = Accounts(settings).usual
    limits = {"memory_bytes": account.memory_bytes, "worker_seconds": account.worker_seconds}
    return {"sessions": float(account.sessions)} | {quota: float(limit) for quota, limit in limits.items() if limit}


def quotas_of(text: str, path: Path, usual: OwnerQuotas = UNLIMITED) -> Mapping[str, OwnerQuotas]:
    """Return the quotas over all nodes of owners who have some of their own in a tokens file.

    Args:
        text: of the file.
        path: of the file, for errors.
        usual: what owners have whose terms do not say.

    Example:
        >>> text = '{"tokens": [], "owners": {"ann": {"sessions": 4, "weight": 2}}}'
        >>> quotas_of(text, Path("tokens.json"))["ann"].limits
        {'sessions': 4.0}
    """
    quotas: dict[str, OwnerQuotas] = {}
    if not text:
        return quotas
    for owner, terms in parse_tokens(text, path).owners.items():
        own = {quota: float(limit) for quota in QUOTAS if (limit := getattr(terms, quota)) is not None}
        limits = {**usual.limits, **own}
        if limits.get("worker_seconds") == 0:  # no limit, in a server's settings
            del limits["worker_seconds"]
        quotas[owner] = OwnerQuotas(terms.weight or 1.0, limits)
    return quotas

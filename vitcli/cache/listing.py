"""`vit cache list` and `vit cache clear`. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vitcli.cache import user_cache
from vitcli.cache.user_cache import KINDS, CacheEntry
from vitcli.errors import VitError, nearest
from vitcli.output import text
from vitcli.output.document import Columns, simple_table

SHOWN = 20  # entries in the list for a terminal
ALL = "all"


@dataclass(frozen=True)
class ClearOptions:
    """What `vit cache clear` is to delete.

    Attributes:
        kinds: of KINDS, or "all"; none with a filter stands for all.
        older_than: only entries unused for at least this long, such as 30d.
        keep: delete least recently used entries until at most this much remains, such as 10GB.
    """

    kinds: Sequence[str] = ()
    older_than: str | None = None
    keep: str | None = None
    dry_run: bool = False


def list_cache() -> dict[str, Any]:
    """Return what the cache holds: totals by kind, and every entry."""
    entries = user_cache.all_entries()
    bounded = sum(entry.num_bytes for entry in entries if entry.is_bounded)
    return {
        "folder": str(user_cache.cache_folder("decoded").parent),
        "limit_bytes": user_cache.limit_bytes(bounded),
        "bounded_bytes": bounded,
        "kinds": [_totals(kind, [entry for entry in entries if entry.kind == kind]) for kind in KINDS],
        "entries": [
            _as_dict(entry) | {"in_use": user_cache.is_in_use(entry.path)}
            for entry in sorted(entries, key=lambda entry: -entry.last_used)
        ],
    }


def clear_cache(options: ClearOptions) -> dict[str, Any]:
    """Delete entries that no process uses; return what was deleted, and what was in use.

    Raises:
        VitError: nothing is named, there is no such kind, or an age or a size cannot be read.
    """
    kinds = _kinds(options)
    older_than_s = keep_bytes = None
    if options.older_than:
        older_than_s = user_cache.parse_age(options.older_than, where="--older-than")
    if options.keep:
        keep_bytes = user_cache.parse_size(options.keep, where="--keep")
    entries = user_cache.all_entries(kinds)
    deleted, in_use = list[CacheEntry](), list[CacheEntry]()
    for entry in user_cache.choose(entries, older_than_s=older_than_s, keep_bytes=keep_bytes):
        goes = not user_cache.is_in_use(entry.path) if options.dry_run else user_cache.delete(entry.path)
        (deleted if goes else in_use).append(entry)
    return {
        "folder": str(user_cache.cache_folder("decoded").parent),
        "dry_run": options.dry_run,
        "deleted": [_as_dict(entry) for entry in deleted],
        "freed_bytes": sum(entry.num_bytes for entry in deleted),
        "in_use": [_as_dict(entry) for entry in in_use],
        "kept_bytes": sum(entry.num_bytes for entry in entries if entry not in deleted),
    }


def _kinds(options: ClearOptions) -> list[str]:
    names = [*KINDS, ALL]
    for kind in options.kinds:
        if kind not in names:
            fix = f"one of {', '.join(names)}"
            raise VitError(f"there is no kind {kind!r}{nearest(kind, names)}", where="KIND", fix=fix)
    if ALL in options.kinds or (not options.kinds and (options.older_than or options.keep)):
        return [*KINDS]
    if not options.kinds:
        fix = f"name what to delete: {', '.join(KINDS)} or {ALL}; vit cache list shows how much each takes"
        raise VitError("nothing is named", where="vit cache clear", fix=fix)
    return [kind for kind in KINDS if kind in options.kinds]


def _totals(kind: str, entries: Sequence[CacheEntry]) -> dict[str, Any]:
    return {
        "kind": kind,
        "what": KINDS[kind].what,
        "is_bounded": KINDS[kind].is_bounded,
        "entries": len(entries),
        "bytes": sum(entry.num_bytes for entry in entries),
        "last_used": _time(max((entry.last_used for entry in entries), default=None)),
    }


def _as_dict(entry: CacheEntry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "about": entry.about,
        "bytes": entry.num_bytes,
        "last_used": _time(entry.last_used),
        "path": str(entry.path),
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def list_as_text(result: dict[str, Any]) -> str:
    """Render the result of `vit cache list`."""
    rows = [
        (kind["kind"], f"{kind['entries']:,}", text.bytes_text(kind["bytes"]), _day(kind), kind["what"])
        for kind in result["kinds"]
    ]
    columns: Columns = {
        "kind": "id", "entries": "number", "size": "number", "last used": "id", "what": "text"
    }  # fmt: skip
    parts = [simple_table(columns, rows).as_text().rstrip()]
    named = [entry for entry in result["entries"] if entry["about"]]
    if named:
        columns = {"kind": "id", "size": "number", "last used": "id", "of": "text"}
        parts.append(simple_table(columns, map(_row, named[:SHOWN])).as_text().rstrip())
        if len(named) > SHOWN:
            parts.append(f"... and {len(named) - SHOWN} more, with --json")
    limit = text.bytes_text(result["limit_bytes"])
    parts.append(
        f"in {result['folder']}\n{text.bytes_text(result['bounded_bytes'])} of at most {limit}, by "
        f"{user_cache.LIMIT} and {user_cache.FREE_FRACTION:.0%} of the free space (without weights)"
    )
    return "\n\n".join(parts)


def _row(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    last_used = "now" if entry["in_use"] else _day(entry)
    return entry["kind"], text.bytes_text(entry["bytes"]), last_used, text.plain(entry["about"])


def clear_as_text(result: dict[str, Any]) -> str:
    """Render the result of `vit cache clear`."""
    verb = "would delete" if result["dry_run"] else "deleted"
    count = text.count_of(len(result["deleted"]), "entry", "entries")
    lines = [f"{verb} {count}, {text.bytes_text(result['freed_bytes'])}, in {result['folder']}"]
    if result["in_use"]:
        left = text.count_of(len(result["in_use"]), "entry", "entries")
        names = ", ".join(entry["about"] or Path(entry["path"]).name for entry in result["in_use"][:3])
        lines.append(f"left alone: {left} in use or not ours to delete: {text.plain(names)}")
    return "\n".join(lines)


def _day(entry: dict[str, Any]) -> str:
    if not entry["last_used"]:
        return "-"
    return datetime.fromisoformat(entry["last_used"]).astimezone().strftime("%Y-%m-%d %H:%M")

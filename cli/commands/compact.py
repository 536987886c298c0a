"""`rocketcrew compact`: small files of the table into large ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click

from ...conf.printed import counted
from ...conf.settings import Settings, require
from ..changing import changes, would
from ..json_text import json_text
from ..options import table_place, with_settings

NOT_ON_HDFS: Final = (
    "compact puts the rewritten table in the place of the old one by one exchange of both folders, which HDFS does not have."
    " Load fewer and larger batches (spark.max_wait_ms)"
)


@click.command()
@click.option("--target", metavar="PATH", help="The table's folder (parquet, pyarrow, delta, deltalake).")
@changes(asks=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_settings(asks_cluster=False, target="spark.target")
def compact(settings: Settings, dry_run: bool, as_json: bool) -> None:
    """Rewrite small files of a table into files of spark.target_file_mib.

    May be run, and killed, at any moment, beside loaders and readers: a table is the old one or the new one, with the same
    rows. Needs no Spark. Of a Parquet table merged rows get the batch_id of the last of their batches, and a query or dataset
    that listed its files before finds some of them gone: run it again.

    \b
    Examples:
      rocketcrew compact --target /data/billing --dry-run
      rocketcrew compact --target /data/billing --set spark.target_file_mib=256
    """
    from ...spark.compaction import compact as rewrite
    from ...spark.compaction import to_merge

    require(settings, ["spark.target"], flag_names={"spark.target": "--target PATH"})
    table = table_place(settings, not_on_hdfs=NOT_ON_HDFS)
    file_bytes = settings.spark.target_file_mib * 1024 * 1024
    if dry_run:
        found, files = to_merge(table, file_bytes)
        would(
            f"merge {found} of {counted(files, 'file')}",
            as_json=as_json,
            files_before=files,
            files_to_merge=found,
        )
        return
    done = rewrite(table, file_bytes)
    if as_json:
        click.echo(json_text(asdict(done)))
        return
    apart = (
        f"; {counted(done.files_apart, 'small file')} not merged with others, as owner, group, mode or ACL differ"
        if done.files_apart
        else ""
    )
    click.echo(f"{counted(done.files_before, 'file')}, now {done.files_after}{apart}")

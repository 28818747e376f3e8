"""`tidewheel topics`: making the topics, and seeing which there are."""

from typing import Annotated

import typer

from tidewheel.control.cli.output import Answer, Output, print_table, say, say_json
from tidewheel.kafka.topics import Topics, apply_topics, queue_names, queues_with_topics, topic_standing
from tidewheel.settings import Connections

topics = typer.Typer(help="The Kafka topics.", no_args_is_help=True)

Queues = Annotated[
    str | None,
    typer.Option(help="Queues whose topics are meant, by comma; else the default one and those that have topics."),
]


@topics.command("apply")
def apply(
    queues: Queues = None,
    replication: Annotated[int | None, typer.Option(help="Copies of each new partition; 3 in production.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,  # noqa: FBT002
    output: Answer = Output.TEXT,
) -> None:
    """Make the topics that are missing; raise partition counts that are too low."""
    settings = Connections.load(replication=replication)
    config, names = settings.kafka_config(), Topics(settings.topic_prefix)
    done = apply_topics(
        config,
        names,
        replication=settings.replication,
        queues=_queues(queues, config, names),
        outputs=settings.outputs_topic,
        dry_run=dry_run,
    )
    say(done or ["nothing to do"], {"would_do" if dry_run else "done": done}, output)


@topics.command("list")
def list_topics(queues: Queues = None, output: Answer = Output.TEXT) -> None:
    """Show every topic with its partitions and copies, and what `topics apply` would do for it."""
    settings = Connections.load()
    config, names = settings.kafka_config(), Topics(settings.topic_prefix)
    found = topic_standing(config, names, queues=_queues(queues, config, names), outputs=settings.outputs_topic)
    if output is Output.JSON:
        rows = [
            {
                "topic": each.topic.name,
                "partitions": each.partitions,
                "wanted_partitions": each.topic.partitions,
                "copies": each.copies,
                "would_be": each.lacks,
            }
            for each in found
        ]
        say_json({"topics": rows})
        return
    print_table(
        ["TOPIC", "PARTITIONS", "COPIES", "APPLY"],
        [
            (
                each.topic.name,
                f"{each.partitions} of {each.topic.partitions}" if each.lacks else str(each.partitions),
                str(each.copies),
                f"would be {each.lacks}" if each.lacks else "nothing to do",
            )
            for each in found
        ],
    )


def _queues(given: str | None, config: dict[str, str], names: Topics) -> list[str]:
    return queues_with_topics(config, names) if given is None else queue_names(given)

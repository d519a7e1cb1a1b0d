"""Database migrations, applied when a database is opened.

A new database gets the tables of the models and counts as migrated; a migration changes those that
exist.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from leaderboard.service.database import Base
from now_builder.errors import ConfigError

_REFUSAL = "events are never changed"
_TRIGGERS = {
    "sqlite": [
        f"CREATE TRIGGER events_{change.lower()} BEFORE {change} ON events"
        f" BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
        for change in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        f"""CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$""",
        """CREATE TRIGGER events_change BEFORE UPDATE OR DELETE OR TRUNCATE ON events
        FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()""",
    ],
}


def settings(connection: Connection) -> Config:
    """Return Alembic's settings for a connection; it works inside its transaction."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection, shown: str) -> None:
    """Create the tables of a new database, or migrate an older one.

    Raises:
        ConfigError: If it has other tables, or was made by a newer version.
    """
    tables = inspect(connection).get_table_names()
    if tables and "alembic_version" not in tables:
        raise ConfigError(f"database {shown}: holds other tables ({min(tables)}), expected none")
    config = settings(connection)
    if not tables:
        Base.metadata.create_all(connection)
        for trigger in _TRIGGERS[connection.dialect.name]:
            connection.exec_driver_sql(trigger)
        command.stamp(config, "head")
        return
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    heads = set(MigrationContext.configure(connection).get_current_heads())
    if not heads <= known:
        raise ConfigError(
            f"database {shown}: made by a newer version (tables {min(heads - known)}), expected"
            f" {max(known)} or older"
        )
    command.upgrade(config, "head")

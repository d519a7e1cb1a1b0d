"""Database migrations, applied when a database is opened."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from now_builder.errors import ConfigError


def settings(connection: Connection) -> Config:
    """Return Alembic's settings for a connection; it works inside its transaction."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection, shown: str) -> None:
    """Migrate a database to the newest tables.

    Raises:
        ConfigError: If it has other tables, or was made by a newer version.
    """
    tables = inspect(connection).get_table_names()
    if tables and "alembic_version" not in tables:
        raise ConfigError(f"database {shown}: holds other tables ({min(tables)}), expected none")
    config = settings(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    found = set(MigrationContext.configure(connection).get_current_heads())
    if not found <= known:
        raise ConfigError(
            f"database {shown}: made by a newer version (tables {min(found - known)}), expected"
            f" {max(known)} or older"
        )
    command.upgrade(config, "head")

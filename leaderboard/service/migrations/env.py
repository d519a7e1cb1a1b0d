"""Alembic's entry point: runs on a given connection, inside its transaction."""

from alembic import context

from leaderboard.service.database import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()

"""Alembic's way in: works on the connection that it is given, inside its transaction."""

from alembic import context

from leaderboard.service.database import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()

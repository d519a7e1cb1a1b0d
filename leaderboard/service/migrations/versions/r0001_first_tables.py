"""First tables, which a new database gets from the models."""

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing: there was no database before."""

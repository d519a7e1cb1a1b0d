"""First tables: users, tokens, entries, usage, and append-only events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_INSTANT = sa.DateTime(timezone=True)
_REFUSAL = "events are never changed"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "users",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("handle", sa.String(40), nullable=False),
        sa.Column("display_name", sa.String(120), nullable=False),
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.Column("disabled_at", _INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("handle", name="uq_users_handle"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("user_id", sa.Integer, nullable=False),
        sa.Column("prefix", sa.String(8), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(40), nullable=False),
        sa.Column("label", sa.String(120), nullable=False),
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.Column("expires_at", _INSTANT),
        sa.Column("revoked_at", _INSTANT),
        sa.Column("last_used_at", _INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("sha256", name="uq_tokens_sha256"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_tokens_user_id"),
    )
    op.create_index("ix_tokens_user_id", "tokens", ["user_id"])
    op.create_index("ix_tokens_prefix", "tokens", ["prefix"])
    _make_entries()
    op.create_table(
        "usage",
        sa.Column("user_id", sa.Integer, nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("scored", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("user_id", "day", name="pk_usage"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_usage_user_id"),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_usage_attempts")),
        sa.CheckConstraint("scored >= 0", name=op.f("ck_usage_scored")),
    )
    _make_events()


def downgrade() -> None:
    """Drop the tables with all their rows."""
    for table in ("events", "usage", "entries", "tokens", "users"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_change()")


def _make_entries() -> None:
    op.create_table(
        "entries",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("user_id", sa.Integer),
        sa.Column("payload_sha256", sa.String(64), nullable=False),
        sa.Column("track", sa.String(32), nullable=False),
        sa.Column("split", sa.String(32), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("rsum", sa.Double, nullable=False),
        sa.Column("ranked", sa.Boolean, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("evidence", sa.String(16), nullable=False),
        sa.Column("submitted_at", _INSTANT),
        sa.Column("withdrawn_at", _INSTANT),
        sa.PrimaryKeyConstraint("name", name="pk_entries"),
        sa.UniqueConstraint("payload_sha256", name="uq_entries_payload_sha256"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_entries_user_id"),
        sa.CheckConstraint("rsum >= 0 AND rsum <= 600", name=op.f("ck_entries_rsum")),
    )
    op.create_index("ix_entries_user_id", "entries", ["user_id"])
    op.create_index("ix_entries_board", "entries", ["track", "split", "rsum"])


def _make_events() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("at", _INSTANT, nullable=False),
        sa.Column("actor", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(120), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_kind", "events", ["kind"])
    make = _guard_postgresql if op.get_bind().dialect.name == "postgresql" else _guard_sqlite
    make()


def _guard_sqlite() -> None:
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER events_{change.lower()} BEFORE {change} ON events"
            f" BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
        )


def _guard_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER events_change BEFORE UPDATE OR DELETE OR TRUNCATE ON events"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )

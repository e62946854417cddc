#!/bin/sh
# Creates Temporal's two databases and brings their schemas up to date. Runs
# once before the server at each start of the compose file; safe to repeat: a
# database that is there stays, and only missing versions are applied.
#
# Reads SQL_HOST, SQL_PORT, SQL_USER, SQL_PASSWORD and SQL_PLUGIN, as
# temporal-sql-tool does: the password is not on a command line.
set -eu

for name in SQL_HOST SQL_PORT SQL_USER SQL_PASSWORD SQL_PLUGIN; do
	eval "value=\${$name:-}"
	if [ -z "$value" ]; then
		echo "setup-schema: $name is not set; see docker-compose.yml" >&2
		exit 2
	fi
done

for pair in temporal:temporal temporal_visibility:visibility; do
	database=${pair%%:*}
	schema=${pair##*:}
	echo "setup-schema: $database"
	temporal-sql-tool --db "$database" create
	temporal-sql-tool --db "$database" setup-schema -v 0.0
	temporal-sql-tool --db "$database" update-schema --schema-name "postgresql/v12/$schema"
done
echo "setup-schema: done"
